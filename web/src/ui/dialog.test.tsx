import { cleanup, fireEvent, render, screen, waitFor } from '@testing-library/preact';
import { afterEach, expect, it, vi } from 'vitest';

import { ApiError } from '../client/errors';
import { Dialogs, FormDialog, closeDialogs, confirm, openDialog, showOnce } from './dialog';
import { FieldReader, PairsField, TextField, fieldState, pairsState } from './field';
import { parseSize } from '../quantities';

afterEach(() => {
  closeDialogs();
  cleanup();
});

it('asks before something that can\'t be undone, with the focus on the harmless answer', async () => {
  render(<><button>Opener</button><Dialogs /></>);
  screen.getByRole('button', { name: 'Opener' }).focus();
  const answer = confirm({ title: 'Delete it?', text: 'All of it.', yes: 'Delete', no: 'Keep it' });
  expect((await screen.findByRole('dialog', { name: 'Delete it?' }))).toBeTruthy();
  expect(document.activeElement).toBe(screen.getByRole('button', { name: 'Keep it' }));
  fireEvent.click(screen.getByRole('button', { name: 'Delete' }));
  expect(await answer).toBe(true);
  await waitFor(() => expect(screen.queryByRole('dialog')).toBeNull());
  expect(document.activeElement).toBe(screen.getByRole('button', { name: 'Opener' }));
});

it('requires a tick where one is asked for', async () => {
  render(<Dialogs />);
  void confirm({ title: 'Remove?', text: '', yes: 'Remove', also: 'Also its sandboxes' });
  const yes = await screen.findByRole('button', { name: 'Remove' }) as HTMLButtonElement;
  expect(yes.disabled).toBe(true);
  fireEvent.click(screen.getByRole('checkbox', { name: 'Also its sandboxes' }));
  expect(yes.disabled).toBe(false);
});

it('keeps a form open until it is accepted, with errors at fields and the server\'s hint', async () => {
  render(<Dialogs />);
  const size = fieldState('much');
  const sent = vi.fn().mockRejectedValueOnce(new ApiError(409, { detail: 'quota exceeded', hint: 'delete one' })).mockResolvedValue(undefined);
  openDialog(close => (
    <FormDialog title="Create" submitText="Create it" onClose={close} onSubmit={async () => {
      const reader = new FieldReader();
      const bytes = reader.parsed(size, parseSize, null);
      reader.done();
      await sent(bytes);
    }}><TextField label="Size" state={size} note="Such as 1GiB" /></FormDialog>
  ));
  const input = await screen.findByLabelText('Size');
  const submit = screen.getByRole('button', { name: 'Create it' });
  fireEvent.click(submit);
  await waitFor(() => expect(input.getAttribute('aria-invalid')).toBe('true'));
  expect(document.activeElement).toBe(input);
  expect(document.getElementById(input.getAttribute('aria-describedby')!.split(' ')[1]!)!.textContent).toContain('512MiB');
  expect(sent).not.toHaveBeenCalled();
  fireEvent.input(input, { target: { value: '64MiB' } });
  expect(input.getAttribute('aria-invalid')).toBeNull();
  fireEvent.click(submit);
  const alert = await screen.findByRole('alert');
  expect(alert.textContent).toContain('Quota exceeded');
  expect(alert.textContent).toContain('Delete one');
  fireEvent.click(submit);
  await waitFor(() => expect(screen.queryByRole('dialog')).toBeNull());
  expect(sent).toHaveBeenLastCalledWith(64 << 20);
});

it('does not lose a secret that is shown once', async () => {
  render(<Dialogs />);
  showOnce('New key', 'Copy it.', 'arn_x');
  const dialog = await screen.findByRole('dialog', { name: 'New key' });
  expect((screen.getByLabelText('New key', { selector: 'input' }) as HTMLInputElement).value).toBe('arn_x');
  const cancel = new Event('cancel', { cancelable: true });
  dialog.dispatchEvent(cancel);
  expect(cancel.defaultPrevented).toBe(true);
});

it('keeps an empty row at the end of pairs', () => {
  const state = pairsState();
  render(<PairsField legend="Labels" what="label" state={state} />);
  fireEvent.input(screen.getByLabelText('Name of label 1'), { target: { value: 'team' } });
  expect(screen.getByLabelText('Name of label 2')).toBeTruthy();
  expect(state.rows.value.map(({ key, value }) => [key, value])).toEqual([['team', ''], ['', '']]);
  fireEvent.click(screen.getByRole('button', { name: 'Remove label 1' }));
  expect(screen.queryByLabelText('Name of label 2')).toBeNull();
});
