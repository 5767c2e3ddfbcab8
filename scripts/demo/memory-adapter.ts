// Where the demo's providers keep sessions, grants and tokens: this process's memory, for one run.
import type { Adapter, AdapterPayload } from 'oidc-provider';

/** A factory with a store of its own, so that two providers in one process share nothing. */
export function createMemoryAdapters(): (model: string) => Adapter {
  const store = new Map<string, { payload: AdapterPayload; expiresAtMs: number }>();

  const read = (key: string): AdapterPayload | undefined => {
    const entry = store.get(key);
    if (entry && entry.expiresAtMs > Date.now()) return entry.payload;
    store.delete(key);
    return undefined;
  };
  const findBy = (model: string, field: 'uid' | 'userCode', value: string) =>
    [...store]
      .filter(([key, { payload }]) => key.startsWith(`${model}:`) && payload[field] === value)
      .map(([key]) => read(key))
      .at(0);

  return (model) => ({
    upsert: async (id, payload, expiresIn) => {
      const expiresAtMs = expiresIn ? Date.now() + expiresIn * 1000 : Number.POSITIVE_INFINITY;
      store.set(`${model}:${id}`, { payload, expiresAtMs });
    },
    find: async (id) => read(`${model}:${id}`),
    findByUid: async (uid) => findBy(model, 'uid', uid),
    findByUserCode: async (userCode) => findBy(model, 'userCode', userCode),
    consume: async (id) => {
      const payload = read(`${model}:${id}`);
      if (payload) payload.consumed = Math.floor(Date.now() / 1000);
    },
    destroy: async (id) => {
      store.delete(`${model}:${id}`);
    },
    revokeByGrantId: async (grantId) => {
      for (const [key, { payload }] of store) if (payload.grantId === grantId) store.delete(key);
    },
  });
}
