// Opens a page from disk in a headless Chromium, uses it with mouse and keyboard, and prints what it showed.
//
//     NODE_PATH=folder/with/playwright-core node page.js OPTIONS        (JSON: `chromium`, `file`)
const { pathToFileURL } = require("node:url");
const { chromium } = require("playwright-core");

const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"];

async function main(options) {
  const browser = await chromium.launch({ executablePath: options.chromium, args: FLAGS });
  try {
    const page = await browser.newPage({ viewport: { width: 400, height: 800 } });
    page.setDefaultTimeout(180000); // a busy machine is slow
    const seen = { asked: [], errors: [] };
    page.on("request", (request) => seen.asked.push(request.url().slice(0, 200)));
    page.on("pageerror", (error) => seen.errors.push(error.message));
    page.on("console", (message) => seen.errors.push(message.text()));
    await page.goto(pathToFileURL(options.file).href);
    seen.asked = [...new Set(seen.asked)].filter((url) => url !== pathToFileURL(options.file).href);
    const found = await videos(page);
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
    const video = card.querySelector("video");
    const now = [...card.querySelectorAll(".route button")].findIndex((square) => square.classList.contains("now"));
    return { time: video.currentTime, paused: video.paused, now, line: card.querySelector(".line").textContent };
  });
  const when = (test) => page.waitForFunction(test);
  await when(() => [...document.querySelectorAll("video")].every((video) => video.readyState >= 2));
  const found = { still: await shown(), orders: [await names()] };
  await page.hover("a.film");
  await when(() => document.querySelector("video").currentTime > 0.3 && document.querySelector(".now"));
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
  await when(() => !document.querySelector("video").paused);
  await page.keyboard.press("Tab");
  await page.keyboard.press("ArrowRight");
  found.arrow = { ...(await shown()), title: await page.evaluate(() => document.activeElement.title) };
  await page.keyboard.press("Tab");
  found.after = await page.evaluate(() => document.activeElement.textContent);
  return found;
}

main(JSON.parse(process.argv[2])).then(
  (result) => console.log(JSON.stringify(result)),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
