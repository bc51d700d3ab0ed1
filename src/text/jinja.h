/*
 * Inside of the Jinja subset that renders chat templates: values, syntax tree, and the machine that walks the
 * tree. One decision shapes all of it: every byte of every string knows whether the template's author wrote
 * it (trusted) or whether it came with the data, so that user text can never become a control token. Only
 * src/text/jinja_*.c and template*.c include this file; the rest of the program sees template.h.
 *
 * Values live in one arena per rendering and are never freed one by one. A template's own nodes and constants
 * live in the template's arena and are read only while rendering, so one template may be rendered by many
 * threads.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TEXT_JINJA_H
#define ESP_TEXT_JINJA_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/strbuf.h"

#include "text/template.h"

/* ---- values ---- */

enum esp_jkind {
    ESP_JUNDEF, /* u.name: what was looked up, for messages; NULL when nobody knows */
    ESP_JNONE,
    ESP_JBOOL,
    ESP_JINT,
    ESP_JFLOAT,
    ESP_JSTR,
    ESP_JLIST, /* list, tuple or range: see form */
    ESP_JDICT,
    ESP_JNAMESPACE, /* u.d */
    ESP_JMACRO,
    ESP_JFUNCTION, /* u.fn: range, dict, ... */
    ESP_JMETHOD,   /* u.bound: 'a b'.split */
    ESP_JLOOP
};

struct esp_jv {
    enum esp_jkind kind;
    union {
        bool b;
        int64_t i;
        double f;
        const char *name;
        struct esp_jstr *s;
        struct esp_jlist *l;
        struct esp_jdict *d;
        struct esp_jmacro *macro;
        struct esp_jmethod *bound;
        struct esp_jloop *loop;
        const struct esp_jbuiltin *fn;
    } u;
};

/*
 * A growing string. A finished string may still be extended in place by the one value that ends at its end:
 * this makes `ns.text = ns.text + part` in a loop linear.
 */
struct esp_jbuf {
    char *p;
    uint8_t *mark; /* one byte per byte of p: 1 = trusted; NULL while all bytes agree */
    size_t len;
    size_t cap;
    bool trusted; /* of all bytes while mark is NULL */
};

/* An immutable piece of UTF-8, not zero-terminated. */
struct esp_jstr {
    const char *p;
    size_t len;
    const uint8_t *mark; /* [len], or NULL when all bytes are as `trusted` says */
    struct esp_jbuf *buf;
    bool trusted;
};

enum esp_jform { ESP_JFORM_LIST, ESP_JFORM_TUPLE, ESP_JFORM_RANGE };

struct esp_jlist {
    struct esp_jv *v; /* [n] */
    size_t n;
    size_t cap;
    enum esp_jform form;
    int64_t range[3]; /* start, stop, step; for printing a range */
};

/* Insertion-ordered; an index of open addressing is kept beyond a few entries. */
struct esp_jdict {
    struct esp_jv *key;
    struct esp_jv *val;
    size_t n;
    size_t cap;
    uint32_t *index; /* [index_cap], entry + 1 or 0; NULL while small */
    size_t index_cap;
};

struct esp_jloop {
    const struct esp_jv *v; /* [n] */
    size_t n;
    size_t i;
    unsigned depth; /* 1 = outermost */
    bool has_changed;
    struct esp_jv changed; /* argument of the last loop.changed() */
};

struct esp_jkw {
    const char *name;
    struct esp_jv v;
};

struct esp_jargs {
    struct esp_jv *pos;
    size_t n_pos;
    struct esp_jkw *kw;
    size_t n_kw;
};

enum { ESP_JMAX_PARAMS = 5 };

struct esp_jcall {
    const struct esp_jbuiltin *fn;
    struct esp_jv self;                 /* filtered value, tested value, or receiver of a method */
    struct esp_jv arg[ESP_JMAX_PARAMS]; /* by position in params */
    bool given[ESP_JMAX_PARAMS];        /* whether the caller gave it */
    const struct esp_jargs *all;        /* as written, for builtins without params */
};

struct esp_jvm;
typedef esp_status (*esp_jbuiltin_fn)(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out);

/* A filter, test, method or function: "old new count?" names its parameters, ? marks those that may be
 * missing. */
struct esp_jbuiltin {
    const char *name;
    const char *params; /* NULL: takes anything and looks at c->all itself */
    esp_jbuiltin_fn fn;
};

struct esp_jmethod {
    const struct esp_jbuiltin *fn;
    struct esp_jv self;
};

/* ---- syntax tree ---- */

enum esp_jnode_type {
    /* statements, linked by next */
    ESP_JN_TEXT,     /* value */
    ESP_JN_PRINT,    /* a */
    ESP_JN_IF,       /* list of ESP_JN_BRANCH: a test or NULL for else, list body */
    ESP_JN_BRANCH,   /* */
    ESP_JN_FOR,      /* name "loop", a target, b iterable, c filter or NULL, list body, other else-body */
    ESP_JN_SET,      /* a target, b value */
    ESP_JN_SETBLOCK, /* a target, list body, other chain of filters */
    ESP_JN_MACRO,    /* name, other parameters (ESP_JN_NAME, a default or NULL), list body; a, b: a use of
                        varargs, kwargs */
    ESP_JN_BREAK,
    ESP_JN_CONTINUE,
    ESP_JN_SCOPE, /* list body in a scope of its own: {% generation %} */
    /* expressions */
    ESP_JN_CONST,   /* value */
    ESP_JN_NAME,    /* name */
    ESP_JN_NSNAME,  /* assignment target name.attr: name, value the attribute */
    ESP_JN_LIST,    /* list, n */
    ESP_JN_TUPLE,   /* list, n */
    ESP_JN_DICT,    /* list of key, value, key, ...; n entries */
    ESP_JN_COND,    /* a if b else c (c may be NULL) */
    ESP_JN_AND,     /* list */
    ESP_JN_OR,      /* list */
    ESP_JN_NOT,     /* a */
    ESP_JN_COMPARE, /* a, list of ESP_JN_OPERAND */
    ESP_JN_ARITH,   /* a, list of ESP_JN_OPERAND, left to right */
    ESP_JN_CONCAT,  /* list */
    ESP_JN_NEG,     /* a */
    ESP_JN_POS,     /* a */
    ESP_JN_OPERAND, /* op, a */
    ESP_JN_CHAIN,   /* a, list of the links below, left to right */
    ESP_JN_ATTR,    /* name */
    ESP_JN_ITEM,    /* a */
    ESP_JN_SLICE,   /* a, b, c, each may be NULL */
    ESP_JN_CALL,    /* list of arguments; a keyword argument is ESP_JN_KW */
    ESP_JN_FILTER,  /* name, list of arguments */
    ESP_JN_TEST,    /* name, list of arguments, op 1 = negated */
    ESP_JN_KW       /* name, a */
};

struct esp_jnode {
    enum esp_jnode_type type;
    int line;
    int op;           /* enum esp_jop */
    uint32_t n;       /* length of list */
    bool flag;        /* for: body defines macros */
    const char *name; /* interned: equal names are equal pointers within one template */
    struct esp_jnode *a, *b, *c;
    struct esp_jnode *list;
    struct esp_jnode *other;
    struct esp_jnode *next;
    struct esp_jv value;
};

enum esp_jop {
    ESP_JOP_ADD = 1,
    ESP_JOP_SUB,
    ESP_JOP_MUL,
    ESP_JOP_DIV,
    ESP_JOP_FLOORDIV,
    ESP_JOP_MOD,
    ESP_JOP_POW,
    ESP_JOP_EQ,
    ESP_JOP_NE,
    ESP_JOP_LT,
    ESP_JOP_LE,
    ESP_JOP_GT,
    ESP_JOP_GE,
    ESP_JOP_IN,
    ESP_JOP_NOTIN
};

/* ---- lexer ---- */

enum esp_jtoken_type {
    ESP_JT_EOF,
    ESP_JT_DATA,
    ESP_JT_VAR_BEGIN,
    ESP_JT_VAR_END,
    ESP_JT_BLOCK_BEGIN,
    ESP_JT_BLOCK_END,
    ESP_JT_NAME,
    ESP_JT_STRING,
    ESP_JT_INT,
    ESP_JT_FLOAT,
    ESP_JT_OP /* op: the character, or two of them as a<<8|b */
};

struct esp_jtoken {
    enum esp_jtoken_type type;
    int line;
    int op;
    const char *s; /* data, name, decoded string */
    size_t len;
    int64_t i;
    double f;
};

enum { ESP_JLEX_STATES_ROOT, ESP_JLEX_STATES_BLOCK, ESP_JLEX_STATES_VAR };

struct esp_jlex {
    const char *s; /* newlines normalised, final one dropped */
    size_t len;
    size_t pos;
    int line;
    int state;
    unsigned open;      /* brackets open inside the tag */
    bool line_starting; /* the last tag swallowed a newline */
    const char *name;
    struct esp_arena *arena;
    esp_error *err;
};

/* Copy source into the arena with \r\n and \r as \n and without one final newline, and start at its first
 * token. */
esp_status esp_jlex_init(struct esp_jlex *l, struct esp_arena *a, const char *source, size_t len,
                         const char *name, esp_error *err);
esp_status esp_jlex_next(struct esp_jlex *l, struct esp_jtoken *out);
/* ESP_EFORMAT with "name:line: " in front. */
esp_status esp_jlex_fail(const struct esp_jlex *l, esp_status s, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- parser ---- */

enum { ESP_JNAME_BUCKETS = 1024 };

struct esp_jname {
    struct esp_jname *next;
    size_t len;
    char s[];
};

struct esp_jparser {
    struct esp_jlex lex;
    struct esp_jtoken cur;
    struct esp_jtoken ahead;
    bool has_ahead;
    unsigned depth;          /* nested blocks and parentheses */
    unsigned loops;          /* for-loops around the statement, up to the next macro */
    unsigned n_macro;        /* macros defined so far */
    struct esp_jnode *macro; /* the innermost one being parsed */
    struct esp_jname *names[ESP_JNAME_BUCKETS];
};

/* Parse a whole template; nodes and constants are in the arena. */
esp_status esp_jparse(struct esp_jnode **out, struct esp_arena *a, const char *source, size_t len,
                      const char *name, esp_error *err);

/* Appends to a node's list in O(1). */
struct esp_jtail {
    struct esp_jnode *owner;
    struct esp_jnode *last;
};
void esp_jparse_append(struct esp_jtail *t, struct esp_jnode *n);

/* Shared by jinja_parse.c (statements), jinja_expr.c (operators) and jinja_primary.c (values). */
esp_status esp_jparse_next(struct esp_jparser *p);
esp_status esp_jparse_look(struct esp_jparser *p, const struct esp_jtoken **out);
esp_status esp_jparse_node(struct esp_jparser *p, enum esp_jnode_type type, int line, struct esp_jnode **out);
esp_status esp_jparse_intern(struct esp_jparser *p, const char *s, size_t len, const char **out);
bool esp_jparse_is_name(const struct esp_jtoken *t, const char *name);
bool esp_jparse_is_op(const struct esp_jtoken *t, int op);
esp_status esp_jparse_expect_op(struct esp_jparser *p, int op);
esp_status esp_jparse_unexpected(struct esp_jparser *p, const char *wanted);
esp_status esp_jparse_enter(struct esp_jparser *p);
esp_status esp_jparse_expr(struct esp_jparser *p, struct esp_jnode **out);
/* Without the inline if: what stands after {% if and in. */
esp_status esp_jparse_or(struct esp_jparser *p, struct esp_jnode **out);
esp_status esp_jparse_primary(struct esp_jparser *p, struct esp_jnode **out);
/* A value with signs before and links behind it. */
esp_status esp_jparse_unary(struct esp_jparser *p, struct esp_jnode **out);
/* Comma-separated expressions, a tuple when there is a comma; stops before end_name too. */
enum esp_jtuple_flags { ESP_JTUPLE_PAREN = 1, ESP_JTUPLE_NO_COND = 2, ESP_JTUPLE_TARGET = 4 };
esp_status esp_jparse_tuple(struct esp_jparser *p, unsigned flags, const char *end_name,
                            struct esp_jnode **out);
/* Filters "| a | b" as a chain without a head; *out is NULL when there are none. */
esp_status esp_jparse_filters(struct esp_jparser *p, struct esp_jnode **out);

/* ---- machine ---- */

struct esp_jvar {
    struct esp_jvar *next;
    const char *name; /* interned */
    struct esp_jv v;
};

struct esp_jscope {
    struct esp_jscope *parent;
    struct esp_jvar *vars;
};

struct esp_jmacro {
    const struct esp_jnode *node;
    struct esp_jscope *scope; /* where it was defined */
};

struct esp_jvm {
    struct esp_arena *arena;
    esp_error *err;
    esp_status status; /* of the last failure, for allocation helpers that return NULL */
    const char *name;
    int line;
    uint64_t steps, max_steps;
    size_t max_output;
    unsigned depth;
    unsigned macro_depth;
    unsigned loop_depth;
    struct esp_jbuf *capture; /* where output goes inside macros and block sets; NULL: to out */
    struct esp_strbuf *out;
    struct esp_text_spans *spans;
    struct esp_jdict *context;
    bool has_now;
    int64_t now;
    struct esp_jvar *free_vars;
};

/* Fail with "name:line: " in front. */
esp_status esp_jvm_fail(struct esp_jvm *vm, esp_status s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Count n steps; ESP_ENOFIT beyond the limit. */
esp_status esp_jvm_charge(struct esp_jvm *vm, uint64_t n);
esp_status esp_jvm_enter(struct esp_jvm *vm);
/* Arena memory, or NULL with vm->status and the message set. */
void *esp_jvm_alloc(struct esp_jvm *vm, size_t n, size_t size);
/* Append to the current output. */
esp_status esp_jvm_emit(struct esp_jvm *vm, const char *p, size_t len, const uint8_t *mark, bool trusted);
esp_status esp_jvm_set(struct esp_jvm *vm, struct esp_jscope *sc, const char *name, struct esp_jv v);
/* From the scope outwards, then the context, then the functions; else undefined. name is interned. */
esp_status esp_jvm_get(struct esp_jvm *vm, const struct esp_jscope *sc, const char *name, struct esp_jv *out);
/* Forget a scope's variables. Only when no macro could hold it. */
void esp_jvm_recycle(struct esp_jvm *vm, struct esp_jscope *sc);
/* Run a template's statements with vm->context as variables. */
esp_status esp_jvm_run(struct esp_jvm *vm, const struct esp_jnode *body);
/* Call fn with its arguments sorted into parameters; what is "filter", "test", ... for messages. */
esp_status esp_jvm_call_builtin(struct esp_jvm *vm, const char *what, const struct esp_jbuiltin *fn,
                                struct esp_jv self, const struct esp_jargs *args, struct esp_jv *out);
esp_status esp_jvm_filter(struct esp_jvm *vm, const char *name, struct esp_jv self,
                          const struct esp_jargs *args, struct esp_jv *out);
esp_status esp_jvm_test(struct esp_jvm *vm, const char *name, struct esp_jv self,
                        const struct esp_jargs *args, bool *out);

/* Tables; NULL when there is no such name. */
const struct esp_jbuiltin *esp_jfilter_find(const char *name);
const struct esp_jbuiltin *esp_jfilter_find_value(const char *name);
const struct esp_jbuiltin *esp_jfilter_find_sequence(const char *name);
const struct esp_jbuiltin *esp_jfilter_find_string(const char *name);
const struct esp_jbuiltin *esp_jtest_find(const char *name);
const struct esp_jbuiltin *esp_jfunction_find(const char *name, const struct esp_jvm *vm);
const struct esp_jbuiltin *esp_jmethod_find_str(const char *name, size_t len);
const struct esp_jbuiltin *esp_jmethod_find(const struct esp_jv *self, const char *name, size_t len);
const struct esp_jbuiltin *esp_jbuiltin_find(const struct esp_jbuiltin *table, size_t n, const char *name,
                                             size_t len);

/* ---- operations on values (jinja_value.c, jinja_ops.c, jinja_print.c) ---- */

static inline struct esp_jv esp_jv_none(void)
{
    return (struct esp_jv){ESP_JNONE, {0}};
}

static inline struct esp_jv esp_jv_bool(bool b)
{
    return (struct esp_jv){ESP_JBOOL, {.b = b}};
}

static inline struct esp_jv esp_jv_int(int64_t i)
{
    return (struct esp_jv){ESP_JINT, {.i = i}};
}

static inline struct esp_jv esp_jv_float(double f)
{
    return (struct esp_jv){ESP_JFLOAT, {.f = f}};
}

static inline struct esp_jv esp_jv_undef(const char *name)
{
    return (struct esp_jv){ESP_JUNDEF, {.name = name}};
}

/* Strings. A view borrows bytes (and marks) that outlive the rendering or are in its arena. */
esp_status esp_jstr_view(struct esp_jvm *vm, const char *p, size_t len, bool trusted, struct esp_jv *out);
/* Bytes [from, to) of s. */
esp_status esp_jstr_slice(struct esp_jvm *vm, const struct esp_jstr *s, size_t from, size_t to,
                          struct esp_jv *out);
esp_status esp_jstr_concat(struct esp_jvm *vm, const struct esp_jstr *a, const struct esp_jstr *b,
                           struct esp_jv *out);
bool esp_jstr_is(const struct esp_jstr *s, const char *z);
size_t esp_jstr_chars(const struct esp_jstr *s);
/* Byte offset of character number i, at most len. */
size_t esp_jstr_offset(const struct esp_jstr *s, size_t i);
/* Characters that Python counts as space; length in bytes of one at s, or 0. */
size_t esp_jspace_at(const char *s, size_t len);
/* Length of one at the end of s[0..len), or 0. */
size_t esp_jspace_before(const char *s, size_t len);
/* A zero-terminated copy, for messages and names; at most 64 bytes. NULL: no memory, see vm->status. */
const char *esp_jstr_short(struct esp_jvm *vm, const struct esp_jstr *s);

struct esp_jbuf *esp_jbuf_new(struct esp_jvm *vm);
esp_status esp_jbuf_add(struct esp_jvm *vm, struct esp_jbuf *b, const char *p, size_t len,
                        const uint8_t *mark, bool trusted);
/* Bytes [from, to) of s with their marks. */
esp_status esp_jbuf_add_str(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jstr *s, size_t from,
                            size_t to);
/* Untrusted zero-terminated text. */
esp_status esp_jbuf_puts(struct esp_jvm *vm, struct esp_jbuf *b, const char *z);
esp_status esp_jbuf_finish(struct esp_jvm *vm, struct esp_jbuf *b, struct esp_jv *out);

esp_status esp_jlist_new(struct esp_jvm *vm, size_t cap, enum esp_jform form, struct esp_jv *out);
esp_status esp_jlist_add(struct esp_jvm *vm, struct esp_jlist *l, struct esp_jv v);
esp_status esp_jdict_new(struct esp_jvm *vm, enum esp_jkind kind, struct esp_jv *out);
esp_status esp_jdict_set(struct esp_jvm *vm, struct esp_jdict *d, struct esp_jv key, struct esp_jv val);
/* *at = the entry, or d->n when there is none; fails for keys that cannot be hashed. */
esp_status esp_jdict_find(struct esp_jvm *vm, const struct esp_jdict *d, struct esp_jv key, size_t *at);
esp_status esp_jdict_find_name(struct esp_jvm *vm, const struct esp_jdict *d, const char *p, size_t len,
                               size_t *at);
/* A list of (key, value) tuples. */
esp_status esp_jdict_items(struct esp_jvm *vm, const struct esp_jdict *d, struct esp_jv *out);
esp_status esp_jdict_remove(struct esp_jvm *vm, struct esp_jdict *d, size_t at);

/* Whole JSON value; strings are borrowed from j and marked as trusted says. */
esp_status esp_jv_from_json(struct esp_jvm *vm, const json_t *j, bool trusted, unsigned depth,
                            struct esp_jv *out);
const char *esp_jv_type(const struct esp_jv *v);
bool esp_jv_truth(const struct esp_jv *v);
/* bool, int or float as a number; false when v is none. */
bool esp_jv_number(const struct esp_jv *v, double *out);
bool esp_jv_integer(const struct esp_jv *v, int64_t *out);
esp_status esp_jv_equal(struct esp_jvm *vm, const struct esp_jv *a, const struct esp_jv *b, bool *out);
/* *out < 0, 0, > 0; fails for types without an order. */
esp_status esp_jv_order(struct esp_jvm *vm, const struct esp_jv *a, const struct esp_jv *b, int *out);
/* The items of anything iterable as a list that must not be changed. */
esp_status esp_jv_iterate(struct esp_jvm *vm, const struct esp_jv *v, const struct esp_jv **items, size_t *n);
esp_status esp_jv_undefined_error(struct esp_jvm *vm, const struct esp_jv *v);

esp_status esp_jv_arith(struct esp_jvm *vm, int op, const struct esp_jv *a, const struct esp_jv *b,
                        struct esp_jv *out);
esp_status esp_jv_compare(struct esp_jvm *vm, int op, const struct esp_jv *a, const struct esp_jv *b,
                          bool *out);
esp_status esp_jv_contains(struct esp_jvm *vm, const struct esp_jv *hay, const struct esp_jv *v, bool *out);
/* In these, out may point to an operand. v.name and v[key]: what is missing is undefined. */
esp_status esp_jv_attr(struct esp_jvm *vm, const struct esp_jv *v, const char *name, size_t len,
                       struct esp_jv *out);
esp_status esp_jv_item(struct esp_jvm *vm, const struct esp_jv *v, const struct esp_jv *key,
                       struct esp_jv *out);
/* bound[i] undefined means left out. */
esp_status esp_jv_slice(struct esp_jvm *vm, const struct esp_jv *v, const struct esp_jv bound[3],
                        struct esp_jv *out);

/* As Python's str(): a string value; strings pass unchanged. */
esp_status esp_jv_str(struct esp_jvm *vm, const struct esp_jv *v, struct esp_jv *out);
esp_status esp_jv_print(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jv *v);
struct esp_jjson_style {
    const char *item_sep; /* zero-terminated */
    const char *key_sep;
    const char *indent; /* one level, or NULL for one line */
    bool ascii;
    bool sort_keys;
};
esp_status esp_jv_json(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jv *v,
                       const struct esp_jjson_style *st);
enum { ESP_JFLOAT_BYTES = 40 };
/* Shortest text that reads back as f, in Python's form: 1.0, 1e+16, inf. */
void esp_jfloat_repr(double f, char out[ESP_JFLOAT_BYTES]);

#endif
