// What sandboxes, their users and their files say reaches the list of steps as text nodes and properties, never as markup.

type Made<K extends keyof HTMLElementTagNameMap> = Partial<Omit<HTMLElementTagNameMap[K], 'dataset' | 'style'>>;

export function make<K extends keyof HTMLElementTagNameMap>(tag: K, properties: Made<K> = {}, ...children: (Node | string)[]): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  Object.assign(node, properties);
  node.append(...children);
  return node;
}
