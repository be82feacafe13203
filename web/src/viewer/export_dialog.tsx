// The dialog that exports a run: format, options, a preview with the size, and the same as commands.

import { useState } from 'preact/hooks';

import { address } from '../client/api';
import { useResource } from '../client/resource';
import { bytes } from '../format';
import { Check, CodeBlock, CodeTabs, Dialog, ErrorState, LinkButton, Loading, SelectField, useFields, fieldState } from '../ui';
import { DEFAULT_EXPORT, type ExportOptions, FORMATS, hasAnnotations, exportCommand, exportCurl, exportName, exportPath, previewExport } from './export';
import { ORIGINS } from './filters';

export function ExportDialog({ id, name, origin, close }: { id: string; name: string; origin: string; close: () => void }) {
  const [options, setOptions] = useState<ExportOptions>({ ...DEFAULT_EXPORT, origin });
  const fields = useFields(() => ({ format: fieldState(options.format), origin: fieldState(options.origin), result: fieldState(), class: fieldState() }));
  const set = (part: Partial<ExportOptions>): void => setOptions(before => ({ ...before, ...part }));
  const preview = useResource(exportPath(id, options), signal => previewExport(id, options, signal));
  const command = exportCommand(id, options);
  const server = new URL(address('/'), location.href).href.replace(/\/$/, '');
  const codes = { ...(command === null ? {} : { 'Command line': command }), curl: exportCurl(server, id, options) };
  const { data } = preview;
  const size = data ? (data.isMore ? `more than ${bytes(data.size)}` : bytes(data.size)) : '';
  const isLines = options.format === 'jsonl';
  return (
    <Dialog title={`Export ${name}`} className="wide" id="export" onClose={close} foot={<>
      <span class="quiet grow" role="status">{size && `Size: ${size}`}</span>
      <LinkButton kind="primary" icon="download" href={address(exportPath(id, options))} download={exportName(id, options)}>Download</LinkButton>
    </>}>
      <div class="export-grid">
        <div class="fields">
          <SelectField label="Format" state={fields.format} onChange={format => set({ format, annotations: null })} options={FORMATS.map(([format]) => [format, format] as const)} note={FORMATS.find(([format]) => format === options.format)?.[1]} autofocus />
          <SelectField label="Steps of" state={fields.origin} onChange={value => set({ origin: value })} options={[['', 'An agent'], ...ORIGINS.slice(2), ['all', 'All origins']]} />
          <SelectField label="Result" state={fields.result} onChange={result => set({ result })} options={[['', 'Any result'], ['succeeded', 'Succeeded'], ['failed', 'Failed']]} />
          <SelectField label="Fault" state={fields.class} onChange={value => set({ class: value })} options={[['', 'Any fault'], ['agent', 'Of the agent'], ['infrastructure', 'Of the infrastructure']]} note="Of failed steps" />
          {!(isLines && options.inline) && <Check label="With annotations" checked={hasAnnotations(options)} onChange={annotations => set({ annotations })} note="Notes, labels and ratings" />}
          {isLines && <Check label="With network records" checked={options.network && !options.inline} onChange={network => set({ network, inline: false })} />}
          {isLines && <Check label="Large bodies inline" checked={options.inline} onChange={inline => set({ inline, network: false })} />}
        </div>
        <div class="stack" aria-label="Preview" role="group">
          <CodeTabs key={Object.keys(codes).join()} codes={codes} label="The same export" />
          <h3>Preview</h3>
          {data ? (data.records.length === 0 ? <p class="quiet">The export has no records: no step fits these options.</p> : data.records.map((record, n) => <CodeBlock key={`${options.format} ${n}`} code={record} label={`Record ${n + 1}`} wrap />))
            : preview.error ? <ErrorState error={preview.error} retry={preview.reload} /> : <Loading label="Loading the preview" />}
        </div>
      </div>
    </Dialog>
  );
}
