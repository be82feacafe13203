// A failure of one part of a page is shown there, and leaves the rest usable.

import { Component, type ComponentChildren } from 'preact';

import { ErrorState } from './empty';

export class Boundary extends Component<{ children: ComponentChildren }, { error: Error | null }> {
  override state = { error: null as Error | null };

  override componentDidCatch(error: Error): void {
    this.setState({ error });
    // The console of the browser has the stack.
    reportError(error);
  }

  override render() {
    const { error } = this.state;
    return error ? <ErrorState error={error} retry={() => this.setState({ error: null })} /> : this.props.children;
  }
}
