// Opens a page from disk in a headless Chromium, uses it with mouse and keyboard, and prints what it showed.
//
//     NODE_PATH=folder/with/playwright-core node page.js OPTIONS        (JSON: `chromium`, `file`; `study`: of a study)
const { pathToFileURL } = require("node:url");
const { chromium } = require("playwright-core");

const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"];

async function main(options) {
  const browser = await chromium.launch({ executablePath: options.chromium, args: FLAGS });
  try {
    const page = await browser.newPage({ viewport: { width: 400, height: 800 } });
    const seen = { asked: [], errors: [] };
    page.on("request", (request) => seen.asked.push(request.url().slice(0, 200)));
    page.on("pageerror", (error) => seen.errors.push(error.message));
    page.on("console", (message) => seen.errors.push(message.text()));
    await page.goto(pathToFileURL(options.file).href);
    seen.asked = seen.asked.filter((url) => !url.startsWith("data:") && url !== pathToFileURL(options.file).href);
    const found = options.study ? await tables(page) : await videos(page);
    for (const width of [400, 1600]) {
      await page.setViewportSize({ width, height: 800 });
      seen[`wide${width}`] = await page.evaluate(() => document.documentElement.scrollWidth);
    }
    const hacked = await page.evaluate(() => window.hacked ?? null);
    return { ...found, ...seen, hacked };
  } finally {
    await browser.close();
  }
}

async function videos(page) {
  const names = () => page.evaluate(() => [...document.querySelectorAll(".card:not([hidden]) h2")].map((h) => h.textContent));
  const shown = () => page.evaluate(() => {
    const card = document.querySelector(".card");
    return {
      x: Number(card.querySelector("image").getAttribute("x") ?? 0),
      now: [...card.querySelectorAll(".route button")].findIndex((square) => square.classList.contains("now")),
      said: card.querySelector(".said").textContent,
    };
  });
  const decoded = await page.evaluate(async () => {
    const picture = new Image();
    picture.src = document.querySelector("image").getAttribute("href");
    await picture.decode();
    return picture.naturalWidth;
  });
  const found = { decoded, still: await shown(), orders: [await names()] };
  await page.hover("a.film");
  await page.waitForFunction(() => Number(document.querySelector("image").getAttribute("x") ?? 0) < -64, null, { timeout: 20000 });
  found.playing = await shown();
  await page.hover("h1");
  found.left = await shown();
  await page.hover(".route li:nth-child(3) button");
  found.looked = await shown();
  for (const key of ["number", "share", "seconds", "seconds"]) {
    await page.click(`[data-sort=${key}]`);
    found.orders.push(await names());
  }
  await page.fill("input[type=search]", "OWL");
  found.filtered = await names();
  await page.fill("input[type=search]", "");
  await page.click("[data-sort=worst]");
  // With the keyboard alone: from the search to the first video, and from square to square.
  await page.focus("input[type=search]");
  await page.keyboard.press("Tab");
  found.first = await page.evaluate(() => document.activeElement.className);
  await page.waitForFunction(() => Number(document.querySelector("image").getAttribute("x")) < 0, null, { timeout: 20000 });
  await page.keyboard.press("Tab");
  await page.keyboard.press("ArrowRight");
  found.arrow = { ...(await shown()), title: await page.evaluate(() => document.activeElement.title) };
  await page.keyboard.press("Tab");
  found.after = await page.evaluate(() => document.activeElement.textContent);
  return found;
}

async function tables(page) {
  const column = (table, number) => page.evaluate(
    ([t, n]) => [...document.querySelectorAll("table")[t].tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[n].textContent),
    [table, number],
  );
  const found = { configurations: await column(0, 0), orders: [] };
  const seconds = page.locator("table").nth(1).locator("th button", { hasText: "seconds" });
  for (let i = 0; i < 2; i += 1) {
    await seconds.click();
    found.orders.push(await column(1, 6));
  }
  await page.fill("input[type=search]", "draft-only");
  found.filtered = await column(1, 0);
  found.plots = await page.evaluate(() => [...document.images].map((image) => image.naturalWidth));
  return found;
}

main(JSON.parse(process.argv[2])).then(
  (result) => console.log(JSON.stringify(result)),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
