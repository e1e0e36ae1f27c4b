// Opens the page of docs/embedding.md's server, asks for a video, and prints what it showed.
//
//     NODE_PATH=folder/with/playwright-core node watch_blocks.js OPTIONS        (JSON: `chromium`, `url`)
const { chromium } = require("playwright-core");

async function main(options) {
  const browser = await chromium.launch({ executablePath: options.chromium, args: ["--headless", "--no-sandbox", "--disable-gpu"] });
  try {
    const page = await browser.newPage();
    page.setDefaultTimeout(180000); // a busy machine is slow
    const errors = [];
    page.on("pageerror", (error) => errors.push(error.message));
    await page.goto(options.url);
    await page.click("button");
    const lines = () => document.querySelector("pre").textContent.split("\n").filter(Boolean).length;
    await page.waitForFunction(`(${lines})() === 4`);
    return { errors, lines: await page.evaluate(lines), picture: await page.evaluate(() => document.querySelector("img").naturalWidth) };
  } finally {
    await browser.close();
  }
}

main(JSON.parse(process.argv[2])).then(
  (result) => console.log(JSON.stringify(result)),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
