"""The style sheet and the script of the page. The page reads without the script."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--ink:#1c1e21;--paper:#fff;--faint:#d5d9de;--soft:#f3f5f7;--link:#0b5cad;--mark:#7a828c;
--plus:#0a7d33;--minus:#b3261e;--plus-bg:#e5f6ea;--minus-bg:#fdeceb;--lit:#fff3c4;--band:.36;--l:46%}
@media (prefers-color-scheme:dark){:root{--ink:#e4e6e9;--paper:#16181b;--faint:#3b4046;--soft:#1f2226;--link:#7ab8ff;
--mark:#8d96a1;--plus:#6fd58e;--minus:#ff8f86;--plus-bg:#12301c;--minus-bg:#3a1917;--lit:#4a3f12;--band:.42;--l:56%}
.memory svg{filter:invert(.9) hue-rotate(180deg)}}
*{box-sizing:border-box}
body{margin:0;font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}
a{color:var(--link)}:focus-visible{outline:2px solid var(--link);outline-offset:1px}
header{position:sticky;top:0;z-index:1;display:flex;flex-wrap:wrap;gap:.2em 1.2em;align-items:baseline;
padding:.5em 1.5em;background:var(--paper);border-bottom:1px solid var(--faint)}
h1{font-size:1.15em;margin:0;overflow-wrap:anywhere}h2{font-size:1.3em;margin:1.6em 0 .5em}
h3{font-size:1em;margin:1.2em 0 .3em;opacity:.75}
nav{display:flex;flex-wrap:wrap;gap:.1em 1em}nav a{text-decoration:none}
#filter{margin-left:auto;padding:.2em .6em;min-width:13em;color:inherit;background:var(--soft);
border:1px solid var(--faint);border-radius:5px;font:inherit}
main{padding:0 1.5em 3em;max-width:1320px}[id]{scroll-margin-top:5.5em}
:target{background:var(--lit)}section:target{background:none}footer{padding:1em 1.5em;opacity:.6}
table{border-collapse:collapse}th{text-align:left;font-weight:600}td,th{padding:.15em .9em .15em 0;vertical-align:top}
.wide{overflow-x:auto;max-width:100%}.long{max-width:34em;overflow-wrap:anywhere}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:.1em 1.2em;margin:.4em 0}
.facts dt{opacity:.7}.facts dd{margin:0;overflow-wrap:anywhere}
.number{white-space:nowrap;opacity:.8;font-variant-numeric:tabular-nums}td.number{text-align:right}
summary .number{white-space:normal}
code{font:12.5px/1.45 ui-monospace,monospace}
pre{position:relative;margin:.4em 0;padding:.7em;overflow:auto;max-height:70vh;background:var(--soft);border-radius:6px;
font:12.5px/1.45 ui-monospace,monospace}
.diff span{display:block}.diff .plus{background:var(--plus-bg)}.diff .minus{background:var(--minus-bg)}
.diff .hunk{opacity:.5}.plus{color:var(--plus)}.minus{color:var(--minus)}.diff .plus,.diff .minus{color:inherit}
.differs td,.differs th{font-weight:600}.change{margin:.15em 0}
details>details,details>p,.parts{margin-left:1.2em}summary{cursor:pointer;padding:.12em 0}
.more,.more summary{display:inline}.same{margin:.15em 0;opacity:.55}.kernel{border-top:1px solid var(--faint)}
.failure{margin:1em 0;padding:.3em 1em;border-left:4px solid var(--minus);background:var(--minus-bg)}
.box{position:relative}.copy{position:absolute;top:.4em;right:.4em;z-index:1;font:12px system-ui,sans-serif;
padding:.1em .6em;color:inherit;background:var(--paper);border:1px solid var(--faint);border-radius:4px;cursor:pointer}
.flow{display:block;max-width:100%;height:auto}
.steps{display:none;margin:0;padding-left:1.6em}.steps>li{margin:.7em 0}.steps ul{padding-left:1.1em}
.steps li{overflow-wrap:anywhere}.steps .number{font-size:.9em}.steps div.number{white-space:normal}
.steps .track{margin:.2em 0}
.about{position:sticky;bottom:0;margin:.4em 0;min-height:1.5em;background:var(--paper);overflow-wrap:anywhere;
font:13px/1.5 ui-monospace,monospace}.about:empty{background:none}
.flow text{font:12px ui-monospace,monospace;fill:var(--ink);paint-order:stroke;stroke:var(--paper);stroke-width:3px;
stroke-opacity:.7;stroke-linejoin:round}
.flow .heads text{opacity:.6;font-family:system-ui,sans-serif}.flow .where{fill:var(--link)}
.flow a{text-decoration:none}.flow .node:focus-visible{outline:2px solid var(--link)}
.flow .node:hover text,.flow .node:focus text{font-weight:600}
.band{fill:hsl(var(--h) 60% var(--l));opacity:var(--band)}.band:hover{opacity:.85}
.flow.some [data-n]{opacity:.13}.flow.some .lit{opacity:1}.flow.some .band.lit{opacity:.75}
.chart{border:0;margin:0;padding:0;min-width:0}.chart legend{float:left;margin-right:.8em;padding:0;opacity:.7}
.chart label{margin:0 1em 0 .2em}
.strip{display:flex;height:1.1em;margin:.3em 0;border-radius:3px;overflow:hidden;background:var(--soft)}
.strip i{background:hsl(var(--h) 55% var(--l));border-right:1px solid var(--paper)}
.bar{display:grid;grid-template-columns:minmax(8em,24em) 7em 5em minmax(6em,1fr);gap:.8em;align-items:center;
padding:.06em 0}
.bar .number{text-align:right}.bar .label{padding-left:1.1em;overflow-wrap:anywhere}
summary.bar{list-style:none}.bar .label{position:relative}
summary.bar .label::before{content:"▸";position:absolute;left:0;opacity:.6}.parts summary.bar .label::before{left:1.3em}
[open]>summary.bar .label::before{content:"▾"}summary.bar::-webkit-details-marker{display:none}
.parts{margin-left:0}.parts .bar .label{padding-left:2.4em}.parts .track i{opacity:.65}
.parts ul{margin:.1em 0 .1em 1.2em}.parts p{margin:.3em 0 0 2.4em;opacity:.75}
.track{height:.85em;border-radius:2px;background:var(--soft)}
.track i{display:block;height:100%;min-width:1px;width:calc(var(--lin)*1%);border-radius:2px;
background:hsl(var(--h,210) 55% var(--l))}
.log:checked~.bars .track i{width:calc(var(--log)*1%)}
.log:checked~.bars .track{background:repeating-linear-gradient(90deg,var(--faint) 0 1px,var(--soft) 1px
calc(100%/var(--steps)))}
.fusion{display:flex;gap:2px;overflow:hidden}.fusion svg{flex:none}.nodes{flex:1;min-width:0}
.node.row,.gap{display:flex;gap:.7em;align-items:center;height:22px;white-space:nowrap;overflow:hidden}
.gap{opacity:.6;padding-left:1.2em}.node i{flex:none;width:8px;height:16px;border-radius:2px;background:var(--faint)}
.node i[style]{background:hsl(var(--h) 60% var(--l))}.node .kind{flex:none;width:10.5em;opacity:.6;font-size:.85em}
.node .kernel{flex:none;width:13em;overflow:hidden;text-overflow:ellipsis;font-size:.85em;border:0}
.node code{flex:1;min-width:0;overflow:hidden;text-overflow:ellipsis}
.node.row:not(:hover,:focus-within) wbr{display:none}
.node.row:hover,.node.row:focus-within{overflow:visible;position:relative;z-index:1;background:var(--soft)}
:is(.node.row:hover,.node.row:focus-within) :is(code,.kernel){overflow:visible;white-space:normal;
overflow-wrap:anywhere;background:var(--soft)}
.arc{fill:none;stroke:var(--faint);stroke-width:1.5}.arc.fused{stroke:hsl(var(--h) 60% var(--l));stroke-width:2.2}
.arc:hover{stroke:var(--minus);stroke-width:3}.fused{color:var(--link);font-weight:600}
.memory svg{display:block;width:100%;max-width:1100px;height:auto}
.hidden{display:none!important}.node.row.hidden{display:flex!important;opacity:.15}
@media (max-width:700px){.bar{grid-template-columns:1fr 5.5em 4em;gap:.1em .6em;padding:.25em 0}
.bar .track{grid-column:1/-1}.node .kernel{display:none}main,header{padding-left:.8em;padding-right:.8em}
header{position:static}[id]{scroll-margin-top:.5em}#filter{width:100%}}
@media (max-width:860px){.flow,.about{display:none}.steps{display:block}}
@media print{header{position:static}pre{max-height:none}}
"""

SCRIPT = """
(function(){
const all=(where,what)=>[...where.querySelectorAll(what)];
const box=document.getElementById('filter'),rows=all(document,'.row');box.hidden=false;
box.addEventListener('input',()=>{const wanted=box.value.trim().toLowerCase();
for(const row of rows)
row.classList.toggle('hidden',!!wanted&&!(row.dataset.name||'').toLowerCase().includes(wanted));});
function copy(pre){const text=pre.textContent;
if(navigator.clipboard&&window.isSecureContext)return navigator.clipboard.writeText(text);
const area=document.createElement('textarea');area.value=text;document.body.append(area);area.select();
const done=document.execCommand('copy');area.remove();return done?Promise.resolve():Promise.reject();}
for(const pre of all(document,'pre.code')){
const frame=document.createElement('div'),button=document.createElement('button');
frame.className='box';button.className='copy';button.type='button';button.textContent='copy';
button.addEventListener('click',()=>copy(pre).then(()=>button.textContent='copied',()=>button.textContent='not copied')
.then(()=>setTimeout(()=>button.textContent='copy',1500)));
pre.replaceWith(frame);frame.append(button,pre);}
for(const flow of all(document,'svg.flow')){const parts=all(flow,'[data-n]');let names=null,told=null,touched=false;
const about=document.createElement('p');about.className='about';about.setAttribute('role','status');
flow.parentElement.after(about);
flow.addEventListener('click',event=>{if(touched)event.preventDefault();touched=false;});
const show=event=>{const node=event.target.closest('[data-o]');const own=node&&node.dataset.o;
if(event.pointerType)touched=event.pointerType==='touch'&&node!==told;
const titled=event.target.closest('[data-n]');told=node;
about.textContent=titled?titled.querySelector('title').textContent:'';
names=names||parts.map(part=>new Set(part.dataset.n.split(' ')));flow.classList.toggle('some',!!own);
parts.forEach((part,n)=>part.classList.toggle('lit',!!own&&names[n].has(own)));};
flow.addEventListener('pointerover',show);flow.addEventListener('focusin',show);
flow.addEventListener('pointerleave',()=>flow.classList.remove('some'));
flow.addEventListener('focusout',()=>flow.classList.remove('some'));}
function reveal(){const id=location.hash.slice(1),target=id&&document.getElementById(id);if(!target)return;
for(let at=target;at;at=at.parentElement)if(at.tagName==='DETAILS')at.open=true;target.scrollIntoView();}
addEventListener('hashchange',reveal);reveal();
})();
"""
