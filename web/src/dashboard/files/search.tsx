// Searching below a folder: by names, or by what files contain.

import { useEffect, useState } from 'preact/hooks';

import { isAbort } from '../../client/errors';
import { Button, EmptyState, Icon, Loading, Problem } from '../../ui';
import { type FoundFile, type FoundLine, MOST_FOUND, findLines, findNames } from './calls';

export type SearchKind = 'names' | 'contents';

interface SearchProps {
  directory: string;
  text: string;
  kind: SearchKind;
  hidden: boolean;
  onOpen: (path: string, isDirectory: boolean, size?: number | null) => void;
  onClose: () => void;
}

type Found = { names: FoundFile[] } | { lines: FoundLine[] };

export function Search({ directory, text, kind, hidden, onOpen, onClose }: SearchProps) {
  const [found, setFound] = useState<{ result: Found; truncated: boolean } | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    const controller = new AbortController();
    setFound(null);
    setError(null);
    const look = async (): Promise<void> => {
      if (kind === 'names') {
        const { found, truncated } = await findNames(directory, text, hidden, controller.signal);
        setFound({ result: { names: found }, truncated });
      } else {
        const { found, truncated } = await findLines(directory, text, controller.signal);
        setFound({ result: { lines: found }, truncated });
      }
    };
    look().catch((failure: Error) => { if (!isAbort(failure)) setError(failure); });
    return () => controller.abort();
  }, [directory, text, kind, hidden]);
  const relative = (path: string): string => (path.startsWith(`${directory}/`) ? path.slice(directory.length + 1) : path);
  const count = found ? ('names' in found.result ? found.result.names.length : found.result.lines.length) : 0;
  return (
    <section class="found" aria-label="Search results">
      <div class="row">
        <p role="status">{found ? `${found.truncated ? `The first ${MOST_FOUND}` : count} found below ${directory}` : error ? '' : 'Searching …'}</p>
        <span class="grow" />
        <Button small onPress={onClose}>Back to the folder</Button>
      </div>
      <Problem error={error} />
      {!found && !error && <Loading label="Searching" />}
      {found && count === 0 && <EmptyState icon="search" title="Nothing found">No {kind === 'names' ? 'name' : 'file'} below {directory} contains “{text}”.</EmptyState>}
      {found && count > 0 && (
        <ul class="found-list">
          {'names' in found.result
            ? found.result.names.map(one => (
              <li key={one.path}><button type="button" class="link" onClick={() => onOpen(one.path, one.is_directory, one.size)}><Icon name={one.is_directory ? 'folder' : 'file'} /><span>{relative(one.path)}</span></button></li>
            ))
            : found.result.lines.map(one => (
              <li key={`${one.file}:${one.line_number}`}><button type="button" class="link" onClick={() => onOpen(one.file, false)}><Icon name="file" /><span>{relative(one.file)}:{one.line_number}</span></button><code class="clip">{one.line_content.slice(0, 300)}</code></li>
            ))}
        </ul>
      )}
    </section>
  );
}
