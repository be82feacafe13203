// What the console shows one at a time: its pages.

export interface View {
  readonly box: HTMLElement;
  /** For the window's title. */
  readonly title: string;
  /** `parts`: what follows the page's name in the address. */
  open(parts: string[], query: URLSearchParams): void;
  close(): void;
}
