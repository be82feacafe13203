// Marks on a page, for pictures of it.

let marks = null;

// Draws a box around each element and its index beside it; boxes are in the page's viewport.
function mark(list) {
  unmark();
  // In XML documents, createElement creates no HTML elements.
  const create = name => document.createElementNS('http://www.w3.org/1999/xhtml', name);
  marks = create('div');
  const inside = marks.attachShadow({ mode: 'closed' });
  const styled = (element, style) => Object.assign(element.style, style);
  styled(marks, { all: 'initial', position: 'absolute', left: '0', top: '0', zIndex: '2147483647', pointerEvents: 'none' });
  list.forEach(({ index, box }) => {
    const colour = `hsl(${(index * 47) % 360} 90% 38%)`;
    const around = create('div');
    styled(around, {
      position: 'absolute', boxSizing: 'border-box', border: `2px solid ${colour}`, left: `${box.x + scrollX}px`,
      top: `${box.y + scrollY}px`, width: `${box.width}px`, height: `${box.height}px`,
    });
    const label = create('span');
    label.textContent = index;
    styled(label, {
      position: 'absolute', right: '0', top: '0', padding: '0 3px', background: colour, color: 'white',
      font: '11px/14px sans-serif', whiteSpace: 'nowrap',
    });
    around.append(label);
    inside.append(around);
  });
  document.documentElement.append(marks);
  // Where the page's own elements begin is not always where the document does.
  const { x, y } = marks.getBoundingClientRect();
  styled(marks, { left: `${-x - scrollX}px`, top: `${-y - scrollY}px` });
}

function unmark() {
  marks?.remove();
  marks = null;
}
