// What nodes/web/frontend.js calls of ComfyUI's page, 0.27 and later, written by hand; only what is used.

declare module "*/scripts/api.js" {
  export const api: {
    addEventListener(name: string, act: (event: CustomEvent) => void): void;
    dispatchCustomEvent(name: string, detail?: unknown): void;
    fetchApi(path: string, options?: RequestInit): Promise<Response>;
    getCustomNodesI18n(): Promise<Translations>;
    queuePrompt(
      number: number,
      prompt: { output: ApiPrompt; workflow: unknown },
      options?: { partialExecutionTargets?: string[] },
    ): Promise<{ prompt_id: string; node_errors?: NodeErrors }>;
  };
}

declare module "*/scripts/app.js" {
  export const app: {
    graph?: Graph;
    rootGraph?: Graph;
    ui: { settings: EventTarget };
    canvas: Canvas;
    extensionManager?: {
      setting?: { get(id: string): unknown };
      workflow?: { activeWorkflow?: Workflow };
      toast: { add(message: Toast): void };
    };
    registerExtension(extension: Extension): void;
    graphToPrompt(): Promise<{ output: ApiPrompt; workflow: unknown }>;
    queuePrompt(number: number, count: number): Promise<unknown>;
  };
}

interface Window {
  LiteGraph: { vueNodesMode?: boolean; LGraphNode: { prototype: GraphNode } };
}

interface Translations {
  [language: string]: { sdvg?: Words };
}

interface Words {
  [name: string]: string | Words;
}

interface Toast {
  severity: string;
  summary: string;
  detail: string;
  life?: number;
}

interface Workflow {
  path: string;
  changeTracker?: {
    beforeChange(): void;
    afterChange(): void;
    constructor: { isLoadingGraph?: boolean };
  };
}

interface Canvas {
  emitBeforeChange?(): void;
  emitAfterChange?(): void;
  processMouseWheel?(event: WheelEvent): void;
}

interface Graph {
  id?: string;
  nodes?: GraphNode[];
  subgraphs?: Map<string, Graph>;
  getNodeById(id: string | number): GraphNode | undefined;
}

interface Link {
  /** Where it comes from: a node, or an input of the subgraph that it is in. */
  resolve(graph: Graph): { outputNode?: GraphNode; subgraphInput?: { name: string } };
}

interface Slot {
  name: string;
  label?: string;
  widget?: { name: string };
  link?: number | null;
}

interface Widget {
  name: string;
  type?: string;
  value: unknown;
  label?: string;
  options: WidgetOptions;
  serialize?: boolean;
  advanced?: boolean;
  hidden?: boolean;
  dynamicPrompts?: boolean;
  tooltip?: string;
  element?: HTMLElement;
  callback?(value: unknown, canvas?: Canvas, node?: GraphNode): void;
  serializeValue?(): unknown;
  computeLayoutSize?: unknown;
  computeSize?(): [number, number];
}

interface WidgetOptions {
  min?: number;
  max?: number;
  advanced?: boolean;
  hidden?: boolean;
  values?: string[];
  getOptionLabel?(value?: string | null): string;
  [name: string]: unknown;
}

interface NodeInput {
  [name: string]: [unknown, InputOptions?];
}

interface InputOptions {
  default?: unknown;
  sdvg_examples?: string[];
  sdvg_pace?: { ahead: [number, number]; patience: [number, number] };
  options?: { key: string; inputs: { required?: NodeInput; optional?: NodeInput } }[];
}

interface NodeData {
  name: string;
  input?: { required?: NodeInput; optional?: NodeInput };
}

interface SavedNode {
  widgets_values?: unknown[];
  inputs?: Slot[];
  size?: [number, number];
  properties?: { cnr_id?: string; ver?: string };
}

interface GraphNode {
  id: number | string;
  type?: string;
  title?: string;
  comfyClass?: string;
  constructor: { nodeData?: NodeData };
  properties?: { cnr_id?: string; ver?: string };
  inputs?: Slot[];
  widgets?: Widget[];
  size: [number, number];
  mode?: number;
  subgraph?: Graph;
  graph?: Graph;
  showAdvanced?: boolean;
  isInputConnected(slot: number): boolean;
  getInputLink(slot: number): Link | null;
  onWidgetChanged?(name: string, value: unknown, before: unknown, widget: Widget): void;
  setDirtyCanvas?(foreground: boolean, background: boolean): void;
  setSize(size: [number, number]): void;
  computeSize(): [number, number];
  expandToFitContent?(): void;
  addWidget(
    type: string,
    name: string,
    value: unknown,
    act: (value: unknown) => void,
    options: WidgetOptions,
  ): Widget;
  addDOMWidget(name: string, type: string, element: HTMLElement, options: object): Widget;
}

interface Extension {
  name: string;
  settings?: object[];
  init?(): void | Promise<void>;
  setup?(): void;
  nodeCreated?(node: GraphNode): void;
  beforeRegisterNodeDef?(type: { prototype: object }, data: NodeData): void;
  afterConfigureGraph?(): void;
  onNodeOutputsUpdated?(outputs: Record<string, NodeOutput>): void;
}

interface ApiNode {
  class_type: string;
  inputs: Record<string, unknown>;
  _meta?: { title: string };
}

type ApiPrompt = Record<string, ApiNode>;
type NodeErrors = Record<string, { class_type: string; errors: NodeError[] }>;

interface NodeError {
  type: string;
  message: string;
  details: string;
  extra_info?: { input_name?: string };
}
