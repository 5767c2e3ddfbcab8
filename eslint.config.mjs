import { readdirSync } from 'node:fs';
import eslint from '@eslint/js';
import { defineConfig } from 'eslint/config';
import tseslint from 'typescript-eslint';

// The dependency rules of the project (AGENTS.md) as lint rules. In the gateway:
//   main → app → {mcp, oauth, pages, connections} → {upstream, elicitation} → @viaduct/shared
// Files directly in src other than main and app (edge, auth, respond, …) serve every folder and know
// none of them. A new folder has to be given its place here.
const LAYERS = [
  ['mcp', 'oauth', 'pages', 'connections', 'console'],
  ['upstream', 'elicitation'],
];

const gateway = `${import.meta.dirname}/services/gateway/src`;
const folders = readdirSync(gateway, { withFileTypes: true })
  .filter((entry) => entry.isDirectory())
  .map((entry) => entry.name);
const unplaced = folders.filter((name) => !LAYERS.flat().includes(name));
if (unplaced.length > 0) {
  throw new Error(`eslint.config.mjs: give services/gateway/src/${unplaced.join(', ')} a layer`);
}

const anyFolder = LAYERS.flat().join('|');
const onlySameNamedFile = {
  regex: `^(?:\\.\\.?/)+(${anyFolder})/(?!\\1\\.ts$)`,
  message: "From outside a folder, import only its same-named file (e.g. './mcp/mcp.ts').",
};
const servicesApart = {
  regex: '@viaduct/(gateway|worker)|/services/|^(\\.\\./)+(gateway|worker)/',
  message: 'Services never import each other; what both run belongs in packages/shared.',
};
const ownExtension = {
  regex: '^\\.{1,2}/.*\\.js$',
  message: "Relative imports name the source file: './x.ts'.",
};
const redisClients = {
  group: ['ioredis'],
  importNamePattern: '^(Redis|Cluster|default)$',
  allowTypeImports: true,
  message: 'Only packages/shared/src/redis/client.ts constructs Redis clients.',
};
const protocolSdk = {
  group: ['@modelcontextprotocol/*'],
  message: 'SDK types and schemas stay inside mcp/ and upstream/.',
};
const noFolder = {
  regex: `^(?:\\.\\.?/)+(${anyFolder})/`,
  message: 'This file serves every folder, so it imports none of them.',
};
const noComposition = {
  regex: '^(?:\\.\\.?/)+(main|app)\\.ts$',
  message: 'Dependencies point down: only main imports app, and nothing imports main.',
};

/** A layer's files may import their own layer's and lower folders, never a higher one. */
function upward(layer) {
  const higher = LAYERS.slice(0, layer).flat();
  if (higher.length === 0) return [];
  return [
    {
      regex: `^(?:\\.\\./)+(${higher.join('|')})/`,
      message: `Dependencies point down: {${LAYERS.slice(0, layer).join('} → {')}} → {${LAYERS[layer].join(', ')}}.`,
    },
  ];
}

const restrict = (...patterns) => ({
  '@typescript-eslint/no-restricted-imports': [
    'error',
    { patterns: [servicesApart, ownExtension, ...patterns] },
  ],
});

const onlyConfigReadsEnv = {
  'no-restricted-properties': [
    'error',
    {
      object: 'process',
      property: 'env',
      message: 'Only packages/shared/src/config reads the environment (main.ts passes it on).',
    },
  ],
};

export default defineConfig(
  {
    ignores: [
      '**/node_modules',
      '**/dist',
      'services/gateway/src/pages/assets',
      'services/gateway/src/console/assets',
      '**/.cache',
      '**/.turbo',
      'test/results',
    ],
  },
  eslint.configs.recommended,
  tseslint.configs.strictTypeChecked,
  tseslint.configs.stylisticTypeChecked,
  {
    languageOptions: {
      parserOptions: {
        projectService: { allowDefaultProject: ['*.mjs'] },
        tsconfigRootDir: import.meta.dirname,
      },
    },
    rules: {
      '@typescript-eslint/consistent-type-imports': 'error',
      // `x!` says "there by construction" shorter than a cast does; the other rule of the pair insists on it.
      '@typescript-eslint/no-non-null-assertion': 'off',
      // Factories return closures, which need no `this`; the few classes are not passed around by method.
      '@typescript-eslint/unbound-method': 'off',
      '@typescript-eslint/no-import-type-side-effects': 'error',
      '@typescript-eslint/restrict-template-expressions': [
        'error',
        { allowNumber: true, allowBoolean: true },
      ],
      '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
      '@typescript-eslint/no-unused-vars': [
        'error',
        { argsIgnorePattern: '^_', varsIgnorePattern: '^_', ignoreRestSiblings: true },
      ],
      // Redis hashes and JSON are index signatures; brackets there say that the key may be missing.
      '@typescript-eslint/dot-notation': ['error', { allowIndexSignaturePropertyAccess: true }],
      '@typescript-eslint/consistent-type-definitions': 'off',
      '@typescript-eslint/require-await': 'off',
      'no-console': 'error',
      'no-undef': 'off', // the type checker knows better
      eqeqeq: ['error', 'always', { null: 'ignore' }],
    },
  },
  {
    files: ['packages/**/*.ts', 'services/worker/**/*.ts'],
    rules: { ...restrict(redisClients, protocolSdk), ...onlyConfigReadsEnv },
  },
  {
    files: ['packages/shared/src/redis/client.ts'],
    rules: restrict(protocolSdk),
  },
  {
    files: [
      'packages/shared/src/config.ts',
      'packages/shared/src/config/**/*.ts',
      'services/*/src/main.ts',
    ],
    rules: { 'no-restricted-properties': 'off' },
  },
  {
    files: ['services/gateway/src/*.ts'],
    rules: {
      ...onlyConfigReadsEnv,
      ...restrict(redisClients, protocolSdk, noComposition, noFolder),
    },
  },
  {
    files: ['services/gateway/src/app.ts', 'services/gateway/src/app.test.ts'],
    rules: restrict(redisClients, protocolSdk, onlySameNamedFile),
  },
  {
    files: ['services/gateway/src/main.ts'],
    rules: { ...restrict(redisClients, protocolSdk, noFolder), 'no-restricted-properties': 'off' },
  },
  ...LAYERS.flatMap((names, layer) =>
    names.map((name) => ({
      files: [`services/gateway/src/${name}/**/*.ts`],
      rules: {
        ...onlyConfigReadsEnv,
        ...restrict(
          redisClients,
          ...(name === 'mcp' || name === 'upstream' ? [] : [protocolSdk]),
          onlySameNamedFile,
          noComposition,
          ...upward(layer),
        ),
      },
    })),
  ),
  {
    // Runs in a browser, as it is.
    files: ['services/gateway/src/pages/assets/**/*.js'],
    extends: [tseslint.configs.disableTypeChecked],
    rules: { '@typescript-eslint/no-restricted-imports': 'error' },
  },
  {
    files: ['scripts/**', 'test/**', '*.mjs'],
    rules: { 'no-console': 'off' },
  },
  {
    // Tests assert on shapes that they have just made, and play clients that know nothing.
    files: ['**/*.test.ts', 'test/**/*.ts'],
    rules: {
      '@typescript-eslint/no-non-null-assertion': 'off',
      // Factories return closures, which need no `this`; the few classes are not passed around by method.
      '@typescript-eslint/unbound-method': 'off',
      '@typescript-eslint/no-unsafe-assignment': 'off',
      '@typescript-eslint/no-unsafe-member-access': 'off',
    },
  },
  {
    // Plain JavaScript: types come from JSDoc; what Node's own JSON returns is `any` there.
    files: ['**/*.js', '**/*.mjs'],
    rules: {
      '@typescript-eslint/no-unsafe-assignment': 'off',
      '@typescript-eslint/no-unsafe-member-access': 'off',
      '@typescript-eslint/no-unsafe-argument': 'off',
      '@typescript-eslint/no-unsafe-call': 'off',
      '@typescript-eslint/no-unsafe-return': 'off',
    },
  },
);
