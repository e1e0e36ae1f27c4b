// What the page makes of saved workflows: opens each, and returns the prompt that it would queue.
//
//     NODE_PATH=folder/with/playwright-core node convert.js OPTIONS        (see page.js; `workflows`: the workflows)
const { main } = require("./page.js");

main((page, { workflows }) =>
  page.evaluate(async (saved) => {
    const prompts = [];
    for (const workflow of saved) {
      await window.app.loadGraphData(workflow);
      prompts.push((await window.app.graphToPrompt()).output);
    }
    return { prompts };
  }, workflows),
);
