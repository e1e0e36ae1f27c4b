// What is said of the widgets of a dynamic combo: when the node is made, and when another option is chosen.
//
//     NODE_PATH=folder/with/playwright-core node tooltips.js OPTIONS        (see page.js)
const { main, reload } = require("./page.js");

main(async (page) => {
  await reload(page); // in the language that was set
  return page.evaluate(() => {
    const { app, LiteGraph } = window;
    const node = LiteGraph.createNode("SDVGQualityRouter");
    app.graph.add(node);
    const said = () => node.widgets.filter((w) => w.name.includes(".")).map((w) => [w.name, w.label, w.tooltip ?? null]);
    const first = said();
    const policy = node.widgets.find((w) => w.name === "policy");
    policy.value = "random";
    policy.callback(policy.value);
    return { first, second: said() };
  });
});
