import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { html } from './html.ts';

describe('html', () => {
  it('escapes what it is given, in text and in attributes', () => {
    const evil = `"><script>alert('1')</script>&amp;`;
    expect(html`<p title="${evil}">${evil}</p>`.text).toBe(
      '<p title="&quot;&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;amp;">' +
        '&quot;&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;amp;</p>',
    );
  });
  it('nests, joins lists and leaves out what is not there', () => {
    const items = ['a', '<b>'].map((x) => html`<i>${x}</i>`);
    expect(html`<p>${items}${false}${undefined}${null}${0}</p>`.text).toBe(
      '<p><i>a</i><i>&lt;b&gt;</i>0</p>',
    );
  });
  it('never lets a value end the markup around it', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (text) => {
        expect(html`<i a="${text}">${text}</i>`.text.match(/[<>"]/g)).toHaveLength(6);
      }),
    );
  });
});
