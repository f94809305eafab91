"""Hugging Face Trainer: the same training with torch.optim.AdamW beside it; clipping binds, three micro-batches."""
import pytest
import torch

import transload
from support import assert_same, assert_streamed
from trainers import BUDGET, DECAY, LR, TOLERANCE, Tokens, relative, tiny_llama

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
CLIP = 0.3


def trainer(folder, how, opt_class, options, steps=12, stop_at=None, **changes):
    model = tiny_llama()
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, max_steps=steps, per_device_train_batch_size=4, logging_steps=1,
        gradient_accumulation_steps=3, max_grad_norm=CLIP, learning_rate=LR, weight_decay=DECAY, warmup_steps=3,
        lr_scheduler_type="cosine", report_to=[], disable_tqdm=True, seed=7, dataloader_pin_memory=False,
        logging_nan_inf_filter=False, **{"save_strategy": "no", **changes})
    keywords = {}
    options = {"lr": LR, "weight_decay": DECAY, **options}
    if how == "optimizers":
        opt = opt_class(model.parameters(), **options)
        schedule = transformers.get_cosine_schedule_with_warmup(opt, 3, steps)
        keywords["optimizers"] = (opt, schedule)
    else:
        keywords["optimizer_cls_and_kwargs"] = (opt_class, options)
    made = transformers.Trainer(model=model, args=arguments, train_dataset=Tokens(), **keywords)
    if stop_at is not None:
        class Stop(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **rest):
                control.should_training_stop = state.global_step >= stop_at

        made.add_callback(Stop())
    return made


def logged(made, key):
    return [entry[key] for entry in made.state.log_history if key in entry]


def inner(opt):
    while hasattr(opt, "optimizer"):
        opt = opt.optimizer
    return opt


@pytest.mark.parametrize("how", ["optimizers", "optimizer_cls_and_kwargs"])
def test_losses_are_those_of_torch(tmp_path, nvme, how):
    ours = trainer(tmp_path / "ours", how, transload.AdamW, {"nvme": str(nvme), "host_memory": BUDGET})
    ours.train()
    theirs = trainer(tmp_path / "theirs", how, torch.optim.AdamW, {})
    theirs.train()
    opt = inner(ours.optimizer)
    assert type(opt) is transload.AdamW
    assert_streamed(opt)
    assert relative(logged(ours, "loss"), logged(theirs, "loss")) < TOLERANCE
    norms = [float(n) for n in logged(theirs, "grad_norm")]
    assert len(norms) == 12 and min(norms) > CLIP, "clipping does not bind"
    assert relative([float(n) for n in logged(ours, "grad_norm")], norms) < 10 * TOLERANCE
    assert logged(ours, "learning_rate") == logged(theirs, "learning_rate")
    assert logged(theirs, "loss")[-1] < logged(theirs, "loss")[0] - 0.5
    assert all(int(opt.state[p]["step"]) == 12 for p in list(opt.state)[:3])


@pytest.mark.parametrize("how", ["optimizers", "optimizer_cls_and_kwargs"])
def test_save_and_resume(tmp_path, nvme, how):
    """Interrupted at 6 of 12 steps and resumed in a new trainer: the same bits as in one go."""
    options = {"nvme": str(nvme), "host_memory": BUDGET}
    whole = trainer(tmp_path / "whole", how, transload.AdamW, options)
    whole.train()
    first = trainer(tmp_path / "run", how, transload.AdamW, options, stop_at=6, save_strategy="steps", save_steps=6)
    first.train()
    checkpoint = tmp_path / "run" / "checkpoint-6"
    assert (checkpoint / "optimizer.pt").stat().st_size > 8 * sum(p.numel() for p in first.model.parameters())
    second = trainer(tmp_path / "run", how, transload.AdamW, options)
    second.train(resume_from_checkpoint=str(checkpoint))
    assert_streamed(inner(second.optimizer))
    assert logged(second, "loss")[-6:] == logged(whole, "loss")[-6:]
    assert_same(second.model.parameters(), whole.model.parameters())


def test_from_a_checkpoint_of_torch(tmp_path, nvme):
    theirs = trainer(tmp_path / "run", "optimizer_cls_and_kwargs", torch.optim.AdamW, {}, stop_at=6,
                     save_strategy="steps", save_steps=6)
    theirs.train()
    options = {"nvme": str(nvme), "host_memory": BUDGET}
    results = []
    for cls, kw in ((transload.AdamW, options), (torch.optim.AdamW, {})):
        resumed = trainer(tmp_path / "run", "optimizer_cls_and_kwargs", cls, kw)
        resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-6"))
        results.append(logged(resumed, "loss"))
    assert relative(*results) < TOLERANCE


def test_bf16_model_and_gradient_checkpointing(tmp_path, nvme):
    model = tiny_llama().to(torch.bfloat16)
    opt = transload.AdamW(model.parameters(), lr=LR, nvme=str(nvme), host_memory=BUDGET)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, max_steps=8, per_device_train_batch_size=8, logging_steps=1, report_to=[],
        disable_tqdm=True, save_strategy="no", gradient_checkpointing=True, bf16=True, dataloader_pin_memory=False)
    made = transformers.Trainer(model=model, args=arguments, train_dataset=Tokens(),
                                optimizers=(opt, transformers.get_constant_schedule(opt)))
    made.train()
    assert_streamed(opt)
    assert logged(made, "loss")[-1] < logged(made, "loss")[0] - 0.2
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    assert all("master" in opt.state[p] for p in [next(model.parameters())])
