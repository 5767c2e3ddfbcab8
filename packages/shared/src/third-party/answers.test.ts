import { ClientError } from 'openid-client';
import { describe, expect, it } from 'vitest';
import { EgressRefused } from '../egress.ts';
import { classify, clientAuth, inspectTokenAnswer } from './answers.ts';

const json = 'application/json; charset=utf-8';

/** As openid-client makes them; its declaration keeps `code` to itself. */
const clientError = (options: { code?: string; cause?: unknown }) =>
  Object.assign(
    new ClientError('m', { cause: options.cause }),
    options.code !== undefined && { code: options.code },
  );

describe('inspectTokenAnswer', () => {
  it('reads an error in a 200 answer as the error that it is', () => {
    const text = '{"error":"bad_verification_code","error_description":"x"}';
    expect(inspectTokenAnswer({ status: 200, contentType: json, text }, true).status).toBe(400);
  });
  it('drops an ID token that nothing could check', () => {
    const text = '{"access_token":"a","id_token":"e.y.J"}';
    expect(inspectTokenAnswer({ status: 200, contentType: json, text }, false).text).toBe(
      '{"access_token":"a"}',
    );
    expect(inspectTokenAnswer({ status: 200, contentType: json, text }, true).text).toBe(text);
  });
  it('leaves everything else alone', () => {
    for (const answer of [
      { status: 200, contentType: 'text/html', text: '<html>' },
      { status: 200, contentType: json, text: '{' },
      { status: 200, contentType: json, text: 'null' },
      { status: 400, contentType: json, text: '{"error":"invalid_grant"}' },
    ]) {
      expect(inspectTokenAnswer(answer, false)).toEqual(answer);
    }
  });
});

describe('classify', () => {
  it('tells a passing fault from a lasting one', () => {
    const status = (code: number) =>
      clientError({
        code: 'OAUTH_RESPONSE_IS_NOT_CONFORM',
        cause: new Response(null, { status: code }),
      });
    expect(classify(status(503)).kind).toBe('unavailable');
    expect(classify(status(429)).kind).toBe('unavailable');
    expect(classify(status(302)).kind).toBe('invalid_answer');
    expect(classify(clientError({ code: 'OAUTH_TIMEOUT' })).kind).toBe('unavailable');
    expect(classify(clientError({ code: 'OAUTH_PARSE_ERROR' })).kind).toBe('invalid_answer');
    expect(classify(clientError({ cause: new EgressRefused('10.0.0.1') })).kind).toBe('denied');
    expect(classify(Object.assign(new Error('x'), { code: 'ECONNREFUSED' }))).toEqual({
      kind: 'unavailable',
      detail: 'ECONNREFUSED',
    });
  });
  it('repeats nothing that could be a secret', () => {
    const secret = 'tp_code_123';
    const error = clientError({ cause: new Error(secret) });
    expect(JSON.stringify(classify(error))).not.toContain(secret);
  });
});

describe('clientAuth', () => {
  const run = (methods: string[] | undefined, secret: string | undefined) => {
    const body = new URLSearchParams();
    const headers = new Headers();
    const server = {
      issuer: 'i',
      ...(methods && { token_endpoint_auth_methods_supported: methods }),
    };
    clientAuth(server, secret)(server, { client_id: 'my-client_1.x' }, body, headers);
    return { body: body.toString(), authorization: headers.get('authorization') };
  };
  it('is Basic unless the metadata leaves it out', () => {
    const { authorization, body } = run(undefined, 'p:ä+');
    expect(body).toBe('');
    expect(Buffer.from(authorization!.slice(6), 'base64').toString()).toBe(
      'my-client_1.x:p%3A%C3%A4%2B',
    );
    expect(run(['client_secret_post'], 's')).toEqual({
      body: 'client_id=my-client_1.x&client_secret=s',
      authorization: null,
    });
    expect(run(['client_secret_post'], undefined).body).toBe('client_id=my-client_1.x');
  });
});
