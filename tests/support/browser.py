"""Chromium without a window: lays a page out and measures what a reader would see.

Every text is set in matplotlib's DejaVu Sans, a wide font, so that lines break alike whatever fonts a machine has.
"""

import base64
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import matplotlib

from tests.support.fork_server import HANGS

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
FONTS = {400: "DejaVuSans.ttf", 700: "DejaVuSans-Bold.ttf"}  # weight: file
# Chromium makes no window narrower than 500 pixels, so a frame in the window has the width. Measured in the frame:
# the page's size, texts that overlap, and texts that stand outside
MEASURE = r"""
function measure(view) {
  const page = view.document, boxes = [];
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.data.trim() || parent.closest(".hidden, .skip, style") || !parent.checkVisibility()) continue;
    const range = page.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) if (box.width && box.height) boxes.push([box, node.data.trim(), parent]);
  }
  const overlaps = [];
  boxes.sort((a, b) => a[0].top - b[0].top);
  for (let i = 0; i < boxes.length; i++)
    for (let j = i + 1; j < boxes.length && boxes[j][0].top < boxes[i][0].bottom - 4; j++) {
      const [a, b] = [boxes[i], boxes[j]];
      const wide = Math.min(a[0].right, b[0].right) - Math.max(a[0].left, b[0].left);
      const high = Math.min(a[0].bottom, b[0].bottom) - b[0].top;
      if (wide > 2 && high > 0.4 * Math.min(a[0].height, b[0].height)) overlaps.push([a[1], b[1]]);
    }
  const outside = boxes.filter(([box, , parent]) => box.right > view.innerWidth + 1 && !parent.closest(".scroll"));
  const whole = page.documentElement;
  const fonts = [...page.fonts].map(font => font.status);
  return {fonts, width: view.innerWidth, scroll: whole.scrollWidth, height: whole.scrollHeight,
    texts: boxes.length, overlaps, outside: outside.map(box => box[1])};
}
"""


def fonts() -> str:
    """A style sheet that sets every text in FONTS. They are in it, since a page may not load a font from a file."""
    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    faces = (
        f"@font-face {{ font-family: Fixed; font-weight: {weight}; "
        f"src: url(data:font/ttf;base64,{base64.b64encode((folder / name).read_bytes()).decode()}) }}"
        for weight, name in FONTS.items()
    )
    return f"<style>{' '.join(faces)} * {{ font-family: Fixed !important }}</style>"


def measure(html: str, folder: Path, width: int) -> dict:
    """What `MEASURE` returns for a page in a window of `width` pixels, in a new profile below `folder`."""
    frame = (html + fonts()).replace("&", "&amp;").replace('"', "&quot;")
    outer = folder / f"outer-{width}.html"
    outer.write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><script>{MEASURE}</script>'
        f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{frame}" onload="'
        "const pre = document.body.appendChild(document.createElement('pre')); pre.id = 'measured'; "
        'pre.textContent = JSON.stringify(measure(this.contentWindow))"></iframe>'
    )
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / outer.stem}", f"--window-size={width + 40},1000"]
    command += ["--dump-dom", outer.as_uri()]
    shown = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, timeout=HANGS)
    match = re.search(r'<pre id="measured">(.*?)</pre>', shown.stdout, re.DOTALL)
    return json.loads(unescape(match[1]))
