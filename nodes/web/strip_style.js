// How the strip looks. Sides and heights are in pixels of the canvas, before it is zoomed.
export const HEIGHT = { playing: 300, still: 124, shots: 152, tau: 50 }; // of the widget; ComfyUI's canvas leaves 10 pixels free on each side

export const SIDE = { least: 34, most: 60, many: 26 }; // of a square with a picture

export const STYLE = `
.sdvg-route { box-sizing: border-box; display: flex; flex: none; flex-direction: column; gap: 6px;
  --base: ${HEIGHT.still - 20}px; --board: 0px; --gate: 0px; height: calc(var(--base) + var(--board) + var(--gate));
  padding: 0 5px; overflow: hidden; font: 12px/16px Inter, Arial, sans-serif; color: var(--input-text, #ddd); }
.sdvg-route.playing { --base: ${HEIGHT.playing - 20}px; }
.sdvg-route.with-shots { --board: ${HEIGHT.shots}px; }
.sdvg-route.with-tau { --gate: ${HEIGHT.tau}px; }
.sdvg-route :focus { outline: none; }

.sdvg-squares { --side: 24px; --high: 24px; display: flex; flex: none; flex-wrap: wrap; gap: 3px; max-height: 57px; margin: 0; padding: 3px;
  overflow: hidden auto; list-style: none; scrollbar-width: thin; }
.playing .sdvg-squares { --side: var(--thumb, 52px); --high: 46px; max-height: 127px; }
.sdvg-squares.many { --side: 13px; --high: 13px; gap: 2px; max-height: 49px; }
.playing .sdvg-squares.many { --side: ${SIDE.many}px; --high: 20px; max-height: 113px; }
.sdvg-squares li { display: flex; flex: none; flex-direction: column; }
.playing .sdvg-squares:not(.many) li::after { content: attr(data-from); width: var(--side); font-size: 9px; line-height: 12px; text-align: center;
  white-space: nowrap; }
.sdvg-squares button { position: relative; box-sizing: border-box; display: flex; flex-direction: column; justify-content: flex-end;
  width: var(--side); height: var(--high); padding: 0; overflow: hidden;
  border: 1px solid color-mix(in srgb, currentColor 40%, transparent); border-radius: 4px; background: transparent; color: inherit;
  font: 600 11px/14px Inter, Arial, sans-serif; text-align: center; cursor: pointer; }
.sdvg-squares canvas { flex: 1; width: 100%; min-height: 0; object-fit: cover; }
.sdvg-route:not(.playing) canvas, .sdvg-route canvas.blank { display: none; }
.sdvg-route:not(.playing) .sdvg-squares button, .sdvg-squares button:has(.blank) { justify-content: center; }
.sdvg-squares button[aria-disabled="true"] { cursor: default; opacity: 0.45; }
.sdvg-route:not(.playing) [data-letter], .sdvg-route:not(.playing) [data-take] { padding-top: 7px; }
.sdvg-squares .made { border-color: transparent; }
.sdvg-squares .earlier { background-image: repeating-linear-gradient(135deg, #fffa 0 3px, #fff4 3px 6px); color: #000 !important; }
.sdvg-squares button::before, .sdvg-squares button::after { position: absolute; top: 0; font-size: 10px; line-height: 10px; }
.sdvg-squares button::before { content: attr(data-letter); left: 2px; }
.sdvg-squares button::after { content: attr(data-take); right: 2px; }
.playing .sdvg-squares [data-letter]::before, .playing .sdvg-squares [data-take]::after { top: 1px; padding: 1px 3px; border-radius: 3px;
  background: #000c; color: #fff; }
.sdvg-squares .again { outline: 2px dashed var(--input-text, #ddd); outline-offset: 0; }
.sdvg-squares .may { outline: 2px dotted color-mix(in srgb, var(--input-text, #ddd) 60%, transparent); outline-offset: 0; }
.sdvg-shot canvas.again { outline: 2px dashed var(--input-text, #ddd); outline-offset: -1px; }
.sdvg-squares .old canvas, .sdvg-route canvas.old, .sdvg-large canvas.old { filter: brightness(0.4); }
.sdvg-route:has(.sdvg-squares .at.old) .sdvg-film, .sdvg-films canvas.old { filter: none; outline: 2px dashed var(--input-text, #ddd); outline-offset: -2px; }
.sdvg-squares .at { box-shadow: 0 0 0 2px var(--input-text, #ddd); }
.sdvg-squares button:focus-visible { box-shadow: 0 0 0 4px #3b9bff; }
.sdvg-squares.many li button { padding: 0; border-radius: 3px; font-size: 0; line-height: 4px; }
.playing .sdvg-squares.many li button { min-height: 0; padding-bottom: 4px; }
.sdvg-squares.many button::before, .sdvg-squares.many button::after { left: 0; width: 100%; line-height: 11px; text-align: center; }
.sdvg-squares.many [data-letter]::after { content: none; }

.sdvg-tau { display: none; position: relative; flex: none; height: ${HEIGHT.tau - 6}px; margin: 0 3px; touch-action: none;
  border: 1px solid var(--border-color, #4e4e4e); border-radius: 4px; box-sizing: border-box; }
.with-tau .sdvg-tau { display: block; }
.sdvg-tau-dots { display: grid; grid-auto-flow: column; grid-auto-columns: minmax(0, calc(var(--thumb, 52px) + 3px)); height: 100%; }
.sdvg-tau-dots i { position: relative; }
.sdvg-tau-dots i::before { content: ""; position: absolute; left: calc(50% - 4px); bottom: calc(var(--at) * 100% - 4px); width: 8px; height: 8px; border-radius: 4px;
  background: currentColor; }
.sdvg-tau-dots .partly::before { background: none; border: 2px solid currentColor; box-sizing: border-box; }
.sdvg-tau-dots .none::before { content: none; }
.sdvg-tau-line { position: absolute; left: 0; bottom: calc(var(--at) * 100% - 6px); width: 100%; height: 12px; cursor: ns-resize; }
.sdvg-tau-line::before { content: ""; position: absolute; top: 5px; left: 0; width: 100%; border-top: 2px dashed #3b9bff; }
.sdvg-tau-line:focus-visible { outline: 2px solid #3b9bff; border-radius: 4px; }
.sdvg-tau-line span { position: absolute; left: 0; bottom: 9px; padding: 0 2px; border-radius: 3px; background: color-mix(in srgb, var(--comfy-menu-bg, #353535) 85%, transparent);
  font-size: 11px; line-height: 13px; white-space: nowrap; pointer-events: none; }
.sdvg-tau-line .below { top: 9px; bottom: auto; }

.sdvg-below { display: flex; flex: 1; gap: 10px; min-height: 0; padding: 0 3px; }
.sdvg-film { flex: none; align-self: start; max-width: 58%; height: 100%; max-height: 100%; border-radius: 4px;
  object-fit: contain; object-position: left top; cursor: zoom-in; }
.sdvg-route.playing:not(.pairing) .sdvg-film.blank { display: block; box-sizing: border-box; aspect-ratio: var(--aspect, 1.7);
  border: 1px dashed color-mix(in srgb, currentColor 40%, transparent); cursor: default; }
.playing.comparing .sdvg-film.blank { display: none !important; }
.sdvg-sheet { display: none; flex: 1; gap: 8px; min-width: 0; }
.sdvg-cells { display: flex; flex: 1; gap: 8px; align-items: flex-start; min-width: 0; overflow: auto hidden; scrollbar-width: thin; }
.comparing .sdvg-sheet { display: flex; }
.comparing .sdvg-film, .comparing .sdvg-side:has(.sdvg-error:empty) { display: none; }
.sdvg-take { display: flex; flex: 0 1 160px; flex-direction: column; gap: 3px; min-width: 72px; max-height: 100%; padding: 3px; border: 2px solid transparent;
  border-radius: 6px; background: transparent; color: inherit; font: 11px/14px Inter, Arial, sans-serif; cursor: pointer; }
.sdvg-take canvas, .sdvg-route .sdvg-take canvas.blank { display: block; flex: 0 1 auto; width: 100%; min-height: 0; aspect-ratio: var(--aspect, 1.7); object-fit: contain; border-radius: 3px; }
.sdvg-take span { flex: none; overflow: hidden; text-overflow: ellipsis; }
.sdvg-tools { display: flex; flex: none; flex-direction: column; gap: 4px; }
.sdvg-large .sdvg-sheet { display: flex; align-items: flex-start; width: 92vw; }
.sdvg-large .sdvg-cells { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); overflow: visible; }
.sdvg-large .sdvg-take { max-height: none; font-size: 13px; }
.sdvg-large .sdvg-take canvas { width: 100%; }
.sdvg-large .sdvg-tools { position: sticky; top: 0; }
.sdvg-large .sdvg-tools :last-child { display: none; }
.sdvg-route.comparing .sdvg-play { visibility: hidden; }
.comparing .sdvg-time { display: none; }
.sdvg-route .sdvg-controls .sdvg-next { display: block; flex: 1; min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.sdvg-route:has(.sdvg-error:not(:empty)) .sdvg-next.nothing { display: none; }
.sdvg-take[aria-checked="true"] { border-color: var(--input-text, #ddd); }
.sdvg-take:focus-visible { border-color: #3b9bff; }
.sdvg-squares .kept::before { content: url('data:image/svg+xml,<svg xmlns="http://www.w3.org/2000/svg" width="8" height="10"><path d="M2 5V3a2 2 0 0 1 4 0v2" fill="none" stroke="white"/><path d="M1 5h6v5H1z" fill="white"/></svg>');
  left: 1px; padding: 1px 2px; border-radius: 3px; background: #000c; }
.sdvg-before, .sdvg-caption, .sdvg-compare { display: none; }
.pairing .sdvg-below { display: grid; grid-template: minmax(0, 1fr) auto / 1fr 1fr; gap: 2px 8px; }
.playing.pairing .sdvg-below > canvas, .playing.pairing .sdvg-below > canvas.blank { display: block; box-sizing: border-box; width: 100%; max-width: none; height: 100%;
  border: 1px solid var(--border-color, #4e4e4e); object-fit: contain; object-position: center; border-radius: 4px; }
.playing.pairing .sdvg-before.blank { visibility: hidden; }
.pairing .sdvg-caption { display: block; overflow: hidden; text-align: center; text-overflow: ellipsis; white-space: nowrap; }
.pairing .sdvg-compare { display: flex; flex: none; gap: 6px; align-items: center; padding: 0 3px; }
.pairing .sdvg-side:has(.sdvg-error:empty), .sdvg-route.pairing .sdvg-drift { display: none; }
.pairing .sdvg-side { grid-column: 1 / 3; }
.sdvg-compare input, .sdvg-large-row input { flex: 1; min-width: 60px; margin: 0; accent-color: #3b9bff; }
.sdvg-compare select { flex: 0 1 150px; min-width: 0; text-overflow: ellipsis; }
.sdvg-compare :focus-visible, .sdvg-large-row :focus-visible { outline: 2px solid #3b9bff; outline-offset: 1px; }
.sdvg-drift { display: flex; flex: none; gap: 8px; align-items: center; height: 16px; padding: 0 3px; white-space: nowrap; }
.sdvg-drift[hidden], .sdvg-route:not(.playing) .sdvg-drift, .comparing .sdvg-drift { display: none; }
.sdvg-drift svg { flex: 1; min-width: 0; height: 12px; padding: 2px 0; overflow: visible; }
.sdvg-drift path { fill: none; stroke: #3b9bff; stroke-width: 2; stroke-linecap: round; stroke-linejoin: round; }
.sdvg-controls { display: flex; flex: none; gap: 6px; align-items: center; padding: 0 3px; }
.sdvg-route:not(.playing) .sdvg-play, .sdvg-route:not(.playing) .sdvg-time { display: none; }
.sdvg-time { flex: 1; font-variant-numeric: tabular-nums; white-space: nowrap; }
.sdvg-large { max-width: 96vw; max-height: 96vh; padding: 10px; border: 1px solid var(--border-color, #4e4e4e); border-radius: 8px;
  background: var(--comfy-menu-bg, #353535); color: var(--input-text, #ddd); font: 13px/18px Inter, Arial, sans-serif; }
.sdvg-large::backdrop { background: #000a; }
.sdvg-films { outline: none; }
.sdvg-large canvas { display: block; width: min(90vw, 80vh * var(--aspect, 1.7)); border-radius: 4px; }
.sdvg-films.two { display: grid; grid-template-columns: 1fr 1fr; gap: 4px 12px; text-align: center; }
.sdvg-films.two canvas { width: min(45vw, 80vh * var(--aspect, 1.7)); }
.sdvg-films canvas.blank { visibility: hidden; }
.sdvg-large-row { display: flex; gap: 8px; align-items: center; margin-top: 8px; font-variant-numeric: tabular-nums; }
.sdvg-large p { margin: 8px 0 0; font-variant-numeric: tabular-nums; }
.sdvg-side { display: flex; flex: 1; flex-direction: column; gap: 4px; min-width: 0; overflow: hidden auto; scrollbar-width: thin; }
.sdvg-legend { display: flex; flex: none; flex-wrap: wrap; gap: 1px 10px; }
.sdvg-legend i { display: inline-block; width: 9px; height: 9px; margin-right: 5px; border-radius: 2px; }
.sdvg-side.looking .sdvg-legend, .sdvg-detail:empty, .sdvg-next:empty, .sdvg-error:empty { display: none; }
.sdvg-next, .sdvg-detail, .sdvg-error { flex: none; }
.sdvg-error { color: color-mix(in srgb, #f33 55%, var(--input-text, #ddd)); overflow-wrap: anywhere; }
.sdvg-button { flex: none; padding: 2px 10px; border: 1px solid var(--border-color, #4e4e4e); border-radius: 4px;
  background: var(--comfy-input-bg, #222); color: inherit; font: inherit; cursor: pointer; }
.sdvg-button:disabled { cursor: default; opacity: 0.7; }
.sdvg-button:focus-visible { outline: 2px solid #3b9bff; outline-offset: -2px; }
.sdvg-button[hidden] { display: none; }
.sdvg-said { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }

.sdvg-shots { display: none; flex: none; gap: 6px; height: ${HEIGHT.shots - 6}px; box-sizing: border-box; margin: 0; padding: 3px; overflow: auto hidden;
  list-style: none; scrollbar-width: thin; }
.with-shots .sdvg-shots { display: flex; }
.sdvg-shot { box-sizing: border-box; display: flex; flex: none; flex-direction: column; gap: 4px; width: 238px; padding: 5px;
  border: 1px solid var(--border-color, #4e4e4e); border-radius: 6px; background: color-mix(in srgb, var(--comfy-input-bg, #222) 55%, transparent); }
.sdvg-shot[hidden] { display: none; }
.sdvg-shot-top, .sdvg-shot-row, .sdvg-shot-length { display: flex; flex: none; gap: 5px; align-items: center; }
.sdvg-shot-top canvas { flex: none; width: auto; height: 26px; border-radius: 3px; }
.sdvg-shot-title { flex: 1; min-width: 0; padding: 0; overflow: hidden; border: 0; background: none; color: inherit; font: 600 12px/16px Inter, Arial, sans-serif;
  text-align: left; text-overflow: ellipsis; white-space: nowrap; cursor: pointer; }
.sdvg-shot textarea, .sdvg-shot input { box-sizing: border-box; margin: 0; border: 1px solid var(--border-color, #4e4e4e); border-radius: 4px;
  background: var(--comfy-input-bg, #222); color: var(--input-text, #ddd); font: 12px/15px Inter, Arial, sans-serif; }
.sdvg-shot textarea { flex: 1; width: 100%; min-height: 0; padding: 3px 5px; resize: none; scrollbar-width: thin; }
.sdvg-shot textarea:read-only, .sdvg-shot input:disabled { opacity: 0.7; }
.sdvg-shot input { width: 52px; height: 20px; padding: 0 4px; }
.sdvg-shot .sdvg-button { padding: 1px 6px; }
.sdvg-shot-row .sdvg-button { flex: auto; white-space: nowrap; }
.sdvg-shot-cut::before { content: "☐ "; }
.sdvg-shot-cut[aria-pressed="true"]::before { content: "☑ "; }
.sdvg-shot :focus-visible { outline: 2px solid #3b9bff; outline-offset: -1px; }
.sdvg-add { display: flex; flex: none; align-items: center; }
.sdvg-add .sdvg-button { height: 100%; }

.sdvg-menu { position: fixed; z-index: 10000; min-width: 150px; padding: 4px; border: 1px solid var(--border-color, #4e4e4e);
  border-radius: 6px; background: var(--comfy-menu-bg, #353535); box-shadow: 0 4px 14px #0006; color: var(--input-text, #ddd);
  font: 13px/18px Inter, Arial, sans-serif; }
.sdvg-menu [role^="menuitem"] { display: flex; gap: 6px; padding: 4px 10px 4px 6px; border-radius: 4px; outline: none; cursor: pointer; }
.sdvg-menu [role^="menuitem"]::before { content: ""; width: 14px; text-align: center; }
.sdvg-menu [aria-checked="true"]::before { content: "✓"; }
.sdvg-menu kbd { margin-left: auto; padding-left: 14px; opacity: 0.7; font: inherit; }
.sdvg-menu :focus { background: #2f6fb5; color: #fff; }
.sdvg-menu :focus kbd { opacity: 1; }
.sdvg-menu hr { margin: 4px 6px; border: 0; border-top: 1px solid var(--border-color, #4e4e4e); }
`;
