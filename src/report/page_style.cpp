#include "report/page_style.h"

namespace transload::report {

// Colours are told apart by people who see few of them, on white and on black (after P. Tol's schemes).
const char* const kPageStyle = R"css(
:root{color-scheme:light dark;--back:#fff;--ink:#1b1f24;--soft:#5c6570;--rule:#d5dae0;--panel:#f5f7f9;--none:#c3c9d0;--mark:#c00}
@media (prefers-color-scheme:dark){:root{--back:#14171a;--ink:#e6e9ec;--soft:#9aa4ae;--rule:#363c43;--panel:#1e2327;--none:#4a525a;--mark:#ff6b5e}}
@media print{:root{--back:#fff;--ink:#000;--soft:#444;--rule:#bbb;--panel:#fff;--none:#c3c9d0;--mark:#c00}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:64rem;padding:1rem;background:var(--back);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.1rem;font-weight:500;color:var(--soft);margin:0;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2.2rem 0 .4rem;border-top:1px solid var(--rule);padding-top:.8rem}
h3{font-size:.95rem;margin:1rem 0 .3rem;color:var(--soft)}
p{margin:.3rem 0}
.says,.empty{color:var(--soft);font-size:.9rem}
#advice{font-size:1.45rem;line-height:1.35;font-weight:600;margin:.4rem 0 1rem}
#advice .flag{white-space:nowrap}
nav{font-size:.9rem;margin:.5rem 0}
nav a{color:inherit;margin-right:.9rem;white-space:nowrap}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;margin:.5rem 0}
th,td{padding:.2rem .7rem .2rem 0;text-align:right;border-bottom:1px solid var(--rule);vertical-align:top}
th,td{white-space:nowrap}
th:first-child,td:first-child{text-align:left}
td:first-child,th{color:var(--soft);font-weight:400}
.two td:last-child{text-align:left;overflow-wrap:anywhere;white-space:normal}
td i{display:inline-block;width:.75em;height:.75em;margin-right:.5em}
svg{display:block;width:100%;background:var(--panel)}
svg.parts{height:2.6rem}
.plot{display:grid;grid-template-columns:4.6rem 1fr;margin:.7rem 1.5rem .3rem 0}
.plot>svg{height:14rem}
.plot>.axis{grid-column:2}
.scale{position:relative;font-size:.75rem;color:var(--soft)}
.scale span{position:absolute;right:.5rem;transform:translateY(50%);white-space:nowrap}
.axis{position:relative;height:1.3rem;font-size:.75rem;color:var(--soft)}
.axis span{position:absolute;transform:translateX(-50%);white-space:nowrap}
.axis span:first-child{transform:none}
.axis .end{transform:translateX(-100%)}
.lane{display:grid;grid-template-columns:8rem 1fr;align-items:center;margin:2px 0}
.lane>span{font-size:.8rem;color:var(--soft);position:sticky;left:0;background:var(--back);z-index:1;white-space:nowrap}
.lane>svg{height:1.5rem}
.timeline input{margin:0 .25rem 0 0}
.timeline label{font-size:.85rem;margin-right:.9rem}
.scroll{overflow-x:auto;padding:.3rem 1.5rem .3rem 0}
.timeline input:nth-of-type(2):checked~.scroll .lanes{width:400%}
.timeline input:nth-of-type(3):checked~.scroll .lanes{width:1600%}
.bar{display:grid;grid-template-columns:8rem 1fr 6.5rem;align-items:center;font-size:.85rem;margin:2px 0}
.bar b{background:var(--panel);height:1rem;margin-right:.6rem}
.bar i{display:block;height:100%;min-width:1px}
.bars{margin:0 0 .7rem}
.legend{list-style:none;padding:0;margin:.3rem 0;font-size:.8rem;color:var(--soft)}
.legend li{display:inline-block;margin-right:1rem}
.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.35em;vertical-align:-.05em}
ul.notes{padding-left:1.2rem;font-size:.95rem}
ul.notes li{overflow-wrap:anywhere;margin:.2rem 0}
.grid{stroke:var(--ink);stroke-opacity:.12;vector-effect:non-scaling-stroke;fill:none}
.budget,.bound{stroke:var(--mark);stroke-width:2;vector-effect:non-scaling-stroke;fill:none}
.budget{stroke-dasharray:6 4}
.line{stroke:var(--ink);stroke-width:1.5;vector-effect:non-scaling-stroke;fill:none}
.band{fill:#4477aa;fill-opacity:.35}
i.k-budget,i.k-bound{background:var(--mark);height:.2em!important;vertical-align:.2em!important}
.c-computation{fill:#4477aa;background:#4477aa}
.c-back{fill:#7a9cc6;background:#7a9cc6}
.c-again{fill:#b5a1d6;background:#b5a1d6}
.c-other{fill:#8d99a5;background:#8d99a5}
.c-update{fill:#66ccee;background:#66ccee}
.c-nvme_read{fill:#228833;background:#228833}
.c-nvme_write{fill:#ccbb44;background:#ccbb44}
.c-host_to_device{fill:#ee6677;background:#ee6677}
.c-device_to_host{fill:#aa3377;background:#aa3377}
.c-collective{fill:#ee8833;background:#ee8833}
.c-device_room{fill:#806000;background:#806000}
.c-host_room{fill:#a08040;background:#a08040}
.c-verdict{fill:#cc3311;background:#cc3311}
.c-between{fill:var(--none);background:var(--none)}
.now{fill-opacity:.55}
.w-room{fill:#a08040;background:#a08040}
.w-use{fill:#aa3377;background:#aa3377}
.w-content{fill:#228833;background:#228833}
.w-queue{fill:#4477aa;background:#4477aa}
.w-work{fill:#66ccee;background:#66ccee}
.w-verdict{fill:#cc3311;background:#cc3311}
.m-weight{fill:#4477aa;background:#4477aa}
.m-residue{fill:#66ccee;background:#66ccee}
.m-moment1{fill:#228833;background:#228833}
.m-moment2{fill:#77bb66;background:#77bb66}
.m-gradient{fill:#ccbb44;background:#ccbb44}
.m-partial{fill:#eedd88;background:#eedd88}
.m-kept{fill:#aa3377;background:#aa3377}
.m-gathered{fill:#bbcc33;background:#bbcc33}
.m-local{fill:#ee8866;background:#ee8866}
.m-other{fill:#8d99a5;background:#8d99a5}
.m-in_flight{fill:#ee6677;background:#ee6677}
.m-padding{fill:var(--none);background:var(--none)}
.m-workspace{fill:#b5a1d6;background:#b5a1d6}
.f-none{fill:var(--none);background:var(--none)}
.f-hit{fill:#4477aa;background:#4477aa}
.f-late{fill:#ccbb44;background:#ccbb44}
.f-demand{fill:#ee6677;background:#ee6677}
@media (max-width:38rem){
body{padding:.7rem}
#advice{font-size:1.2rem}
.lane{grid-template-columns:1fr;margin:.35rem 0}
.lane>span{width:max-content;padding-right:.4rem}
.bar{grid-template-columns:6.3rem 1fr 5.2rem}
.plot{grid-template-columns:3.9rem 1fr;margin-right:1rem}
.plot>svg{height:11rem}
td:first-child{white-space:normal;min-width:8rem}
}
@media print{
body{max-width:none;font-size:11pt;padding:0}
nav,.timeline input,.timeline label{display:none}
.timeline .scroll .lanes{width:100%!important}
section{break-inside:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
}
)css";

}  // namespace transload::report
