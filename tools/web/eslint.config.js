import js from "@eslint/js";

const page =
  "AbortController Element HTMLElement IntersectionObserver KeyboardEvent Node ResizeObserver URL console createImageBitmap document";
const more =
  "getComputedStyle navigator performance requestAnimationFrame sessionStorage setTimeout window";
const globals = Object.fromEntries(`${page} ${more}`.split(" ").map((name) => [name, "readonly"]));

export default [
  js.configs.recommended,
  {
    files: ["**/*.js"],
    languageOptions: { ecmaVersion: 2025, sourceType: "module", globals },
    linterOptions: { reportUnusedDisableDirectives: "error" },
  },
];
