"""Lightning: the same training with torch.optim.AdamW beside it."""
import pytest
import torch

import transload
from support import assert_same, assert_streamed
from trainers import BUDGET, DECAY, LR, TOLERANCE, Tokens, relative, tiny_llama

lightning = pytest.importorskip("lightning")
CLIP = 0.3

pytestmark = pytest.mark.filterwarnings("ignore")


class Module(lightning.LightningModule):
    def __init__(self, cls, options):
        super().__init__()
        self.model = tiny_llama()
        self.model.train()
        self.made, self.options = cls, options
        self.losses, self.norms = [], []

    def training_step(self, batch, index):
        loss = self.model(**batch).loss
        self.losses.append(loss.item())
        return loss

    def on_before_optimizer_step(self, optimizer):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        self.norms.append(torch.nn.utils.get_total_norm(grads).item())

    def configure_optimizers(self):
        opt = self.made(self.parameters(), lr=LR, weight_decay=DECAY, **self.options)
        return [opt], [{"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(opt, 8), "interval": "step"}]


def trainer(folder, **changes):
    return lightning.Trainer(accelerator="cpu", devices=1, gradient_clip_val=CLIP, accumulate_grad_batches=3,
                             logger=False, enable_progress_bar=False, enable_model_summary=False,
                             default_root_dir=folder, **{"enable_checkpointing": False, "max_steps": 8, **changes})


def loader():
    """Two epochs of 12: a checkpoint within an epoch would have Lightning begin it again."""
    return torch.utils.data.DataLoader(Tokens(48), batch_size=4)


def fit(folder, cls, options, checkpoint=None, **changes):
    module = Module(cls, options)
    made = trainer(folder, **changes)
    made.fit(module, loader(), ckpt_path=checkpoint)
    return module, made


def test_losses_are_those_of_torch(tmp_path, nvme):
    ours, made = fit(tmp_path, transload.AdamW, {"nvme": str(nvme), "host_memory": BUDGET})
    theirs, _ = fit(tmp_path, torch.optim.AdamW, {})
    assert_streamed(made.optimizers[0])
    assert len(theirs.norms) == 8 and min(theirs.norms) > CLIP, "clipping does not bind"
    assert relative(ours.losses, theirs.losses) < TOLERANCE
    assert theirs.losses[-1] < theirs.losses[0] - 0.3


def test_save_and_resume(tmp_path, nvme):
    """After a restore Lightning moves the state to the device, entry by entry, as it does at teardown.

    What a resumed epoch begins with is Lightning's affair: the resumed run is compared with torch's own, and shown to be
    another one than a run that got the weights alone."""
    def resumed(cls, options, keep=True):
        folder = tmp_path / f"{cls.__module__}-{keep}"
        _, made = fit(folder, cls, options, max_steps=4)
        made.save_checkpoint(folder / "half.ckpt")
        if not keep:
            content = torch.load(folder / "half.ckpt", weights_only=False)
            content["optimizer_states"][0]["state"] = {}
            torch.save(content, folder / "half.ckpt")
        return fit(folder, cls, options, checkpoint=str(folder / "half.ckpt"))

    ours, made = resumed(transload.AdamW, {"nvme": str(nvme), "host_memory": BUDGET})
    assert_streamed(made.optimizers[0])
    theirs, _ = resumed(torch.optim.AdamW, {})
    assert relative(ours.losses, theirs.losses) < TOLERANCE
    forgotten, _ = resumed(torch.optim.AdamW, {}, keep=False)
    assert relative(forgotten.losses, theirs.losses) > 10 * TOLERANCE
    again, _ = resumed(transload.AdamW, {})
    assert again.losses == ours.losses
    assert_same(again.parameters(), ours.parameters())


def test_manual_optimization(tmp_path, nvme):
    class Manual(Module):
        automatic_optimization = False

        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.automatic_optimization = False

        def training_step(self, batch, index):
            opt = self.optimizers()
            loss = super().training_step(batch, index)
            opt.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(opt, gradient_clip_val=CLIP, gradient_clip_algorithm="norm")
            opt.step()

    results = []
    for cls, options in ((transload.AdamW, {"nvme": str(nvme), "host_memory": BUDGET}), (torch.optim.AdamW, {})):
        module = Manual(cls, options)
        made = lightning.Trainer(accelerator="cpu", devices=1, max_steps=8, logger=False, enable_progress_bar=False,
                                 enable_model_summary=False, default_root_dir=tmp_path, enable_checkpointing=False)
        made.fit(module, loader())
        results.append(module.losses)
    assert relative(*results) < TOLERANCE
