/*
 * config.json: real ones, each key damaged, each inconsistency, quantization tables.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/model_files.h"

#include <math.h>
#include <stdbool.h>

#include "base/json.h"
#include "base/mem.h"
#include "io/config.h"
#include "io/config_quant.h"

static esp_status read_edited(struct esp_config *out, const char *const edits[][2], size_t n,
                              struct esp_warnings *w, esp_error *err)
{
    json_t *j = mf_config();
    esp_status s;

    for (size_t i = 0; i < n; i++)
        mf_set(j, edits[i][0], edits[i][1]);
    s = esp_config_read(out, j, NULL, "config.json", w, err);
    json_decref(j);
    return s;
}

static void with(struct esp_config *out, const char *path, const char *json, const char *warning)
{
    const char *const edits[1][2] = {{path, json}};
    struct esp_warnings w = {.n = 0};
    esp_error err;

    test_ok(read_edited(out, edits, 1, &w, &err), &err);
    assert_int_equal(w.n, warning ? 1 : 0);
    if (warning && !strstr(w.text[0], warning))
        fail_msg("warning \"%s\" lacks \"%s\"", w.text[0], warning);
    esp_warnings_free(&w);
}

static void test_demo(void **state)
{
    struct esp_config c;
    struct esp_warnings w = {.n = 0};
    esp_error err;

    (void)state;
    test_ok(esp_config_load(&c, test_path("models/demo"), &w, &err), &err);
    assert_int_equal(w.n, 0);
    assert_int_equal(c.arch, ESP_ARCH_QWEN35);
    assert_string_equal(c.architecture, "Qwen3_5ForConditionalGeneration");
    assert_int_equal(c.hidden, 256);
    assert_int_equal(c.n_layer, 8);
    assert_int_equal(c.n_full, 2);
    assert_true(c.is_full[3] && c.is_full[7] && !c.is_full[0]);
    assert_int_equal(c.ffn, 1024);
    assert_int_equal(c.n_head, 2);
    assert_int_equal(c.n_kv_head, 1);
    assert_int_equal(c.lin_v_head, 2);
    assert_int_equal(c.conv_kernel, 4);
    assert_true(c.rms_eps == 1e-6);
    assert_int_equal(c.vocab_size, 4096);
    assert_int_equal(c.n_mtp_layer, 1);
    assert_int_equal(c.rope.type, ESP_ROPE_DEFAULT);
    assert_true(c.rope.theta == 100000);
    assert_int_equal(c.rope.rotary_dims, 64);
    assert_int_equal(c.rope.section[2], 10);
    assert_false(c.vision.present);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[0], 4084);
    assert_int_equal(c.eos[1], 4082);
    assert_int_equal(c.pad, 4082);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.tied_top, ESP_TIED_YES);
    assert_int_equal(c.tied_text, ESP_TIED_YES);
    assert_true(c.generation.has_temperature && c.generation.temperature == 0.7);
    assert_int_equal(c.generation.top_k, 20);
    assert_true(c.generation.top_p == 0.9);
    assert_false(c.generation.has_min_p);
    assert_int_equal(c.dtype, ESP_DTYPE_BF16);
    assert_false(c.quant.present);
    esp_config_free(&c);
    test_ok(esp_config_load(&c, test_path("models/tiny-text"), &w, &err), &err);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(w.n, 0);
    esp_config_free(&c);
}

/* The other shapes of models that the fuzz corpus keeps: all are accepted as they are. */
static void test_corpus_configs(void **state)
{
    static const char *const names[] = {"demo",      "tiny_text", "tiny_moe",     "tiny_vl",
                                        "quantized", "yarn",      "flat_old_rope"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct esp_warnings w = {.n = 0};
        struct esp_config c;
        char path[128];
        esp_error err;
        json_t *j;

        snprintf(path, sizeof path, "fuzz/corpus/config/%s.json", names[i]);
        j = test_json(path);
        test_ok(esp_config_read(&c, j, NULL, names[i], &w, &err), &err);
        assert_int_equal(w.n, 0);
        assert_int_equal(c.vision.present, strcmp(names[i], "tiny_vl") == 0);
        assert_int_equal(c.n_expert, strcmp(names[i], "tiny_moe") == 0 ? 4 : 0);
        assert_int_equal(c.quant.present, strcmp(names[i], "quantized") == 0);
        esp_config_free(&c);
        json_decref(j);
    }
}

struct bad {
    const char *path, *json;
    esp_status status;
    const char *part;
};

#define TC "text_config."
#define RP "text_config.rope_parameters."

/* Field case 7 and consistency: one edit each. */
static const struct bad bad_edits[] = {
    {TC "hidden_size", "-1", ESP_EFORMAT, "text_config.hidden_size is -1; an integer from 1 to 65536"},
    {TC "hidden_size", "0", ESP_EFORMAT, "hidden_size is 0"},
    {TC "hidden_size", "256.5", ESP_EFORMAT, "hidden_size is 256.5"},
    {TC "hidden_size", "\"256\"", ESP_EFORMAT, "the string \"256\""},
    {TC "hidden_size", "true", ESP_EFORMAT, "hidden_size is true"},
    {TC "hidden_size", "[256]", ESP_EFORMAT, "hidden_size is an array"},
    {TC "hidden_size", "1e300", ESP_EFORMAT, "hidden_size is"},
    {TC "hidden_size", NULL, ESP_EFORMAT, "missing key text_config.hidden_size"},
    {TC "hidden_size", "null", ESP_EFORMAT, "missing key text_config.hidden_size"},
    {TC "vocab_size", "9999999999", ESP_EFORMAT, "vocab_size is 9999999999"},
    {TC "num_hidden_layers", "100000", ESP_EFORMAT, "num_hidden_layers"},
    {TC "num_hidden_layers", "7", ESP_EFORMAT, "layer_types must be an array of num_hidden_layers = 7"},
    {TC "layer_types", "{}", ESP_EFORMAT, "layer_types"},
    {TC "layer_types", "[1,2,3,4,5,6,7,8]", ESP_EFORMAT, "layer_types[0] is not a string"},
    {TC "layer_types", "[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\"]", ESP_EUNSUPPORTED,
     "'a' is not supported"},
    {TC "full_attention_interval", "0", ESP_EFORMAT, "full_attention_interval"},
    {TC "num_attention_heads", NULL, ESP_EFORMAT, "num_attention_heads"},
    {TC "num_key_value_heads", "3", ESP_EFORMAT, "not a multiple of num_key_value_heads 3"},
    {TC "linear_num_value_heads", NULL, ESP_EFORMAT, "missing key text_config.linear_num_value_heads"},
    {TC "linear_num_key_heads", "3", ESP_EFORMAT, "not a multiple of linear_num_key_heads 3"},
    {TC "head_dim", "65536", ESP_EFORMAT, "rotary dims is 8192"},
    {TC "num_attention_heads", "65536", ESP_EFORMAT, "the query projection is 33554432 wide"},
    {TC "linear_num_value_heads", "65536", ESP_EFORMAT, "linear-attention projection"},
    {TC "head_dim", "255", ESP_EFORMAT, "head_dim 255 is odd"},
    {TC "head_dim", "128", ESP_EFORMAT, "mrope_section [11,11,10] sums to 32"},
    {TC "intermediate_size", NULL, ESP_EFORMAT, "missing key text_config.intermediate_size"},
    {TC "rms_norm_eps", "0", ESP_EFORMAT, "rms_norm_eps is 0; a finite number"},
    {TC "rms_norm_eps", "-1e-6", ESP_EFORMAT, "rms_norm_eps"},
    {TC "rms_norm_eps", "\"NaN\"", ESP_EFORMAT, "rms_norm_eps is the string"},
    {TC "attention_bias", "true", ESP_EUNSUPPORTED, "attention_bias"},
    {TC "attention_bias", "0", ESP_EFORMAT, "true or false"},
    {TC "attn_output_gate", "false", ESP_EUNSUPPORTED, "attn_output_gate"},
    {TC "hidden_act", "\"gelu\"", ESP_EUNSUPPORTED, "'gelu'"},
    {TC "output_gate_type", "\"sigmoid\"", ESP_EUNSUPPORTED, "'sigmoid'"},
    {TC "mtp_num_hidden_layers", "-1", ESP_EFORMAT, "mtp_num_hidden_layers"},
    {TC "max_position_embeddings", "0", ESP_EFORMAT, "max_position_embeddings"},
    {TC "eos_token_id", "4096", ESP_EFORMAT, "eos_token_id is 4096"},
    {TC "eos_token_id", "[1,\"2\"]", ESP_EFORMAT, "eos_token_id"},
    {TC "eos_token_id", "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", ESP_EFORMAT, "more than 16"},
    {RP "rope_theta", NULL, ESP_EFORMAT, "missing key rope_theta"},
    {RP "rope_theta", "0", ESP_EFORMAT, "rope_theta is 0"},
    {RP "rope_theta", "-5.0", ESP_EFORMAT, "rope_theta is -5"},
    {RP "rope_type", "\"llama3\"", ESP_EUNSUPPORTED, "'llama3'"},
    {RP "rope_type", "7", ESP_EFORMAT, "a string is accepted"},
    {RP "partial_rotary_factor", "1.5", ESP_EFORMAT, "partial_rotary_factor"},
    {RP "partial_rotary_factor", "0.3", ESP_EFORMAT, "rotary dims"},
    {RP "mrope_section", "[11,11,11]", ESP_EFORMAT, "sums to 33"},
    {RP "mrope_section", "[11,11]", ESP_EFORMAT, "array of 3"},
    {RP "mrope_section", "[11,-11,32]", ESP_EFORMAT, "mrope_section is -11"},
    {RP "mrope_interleaved", "false", ESP_EUNSUPPORTED, "mrope_interleaved"},
    {RP "rope_type", "\"yarn\"", ESP_EFORMAT, "missing key rope_parameters.factor"},
    {"text_config", "[]", ESP_EFORMAT, "an object is accepted"},
    {"architectures", "[\"LlamaForCausalLM\"]", ESP_EUNSUPPORTED,
     "'LlamaForCausalLM' is not supported (supported: Qwen3_5"},
    {"architectures", "[]", ESP_EFORMAT, "array of names"},
    {"architectures", "[\"Qwen3_5MoeForCausalLM\"]", ESP_EFORMAT, "contradicts"},
    {"model_type", "\"gpt2\"", ESP_EUNSUPPORTED, "'gpt2'"},
    {TC "model_type", "\"qwen3_5_moe_text\"", ESP_EFORMAT, "text_config.model_type"},
    {"tie_word_embeddings", "1", ESP_EFORMAT, "tie_word_embeddings is 1"},
    {"norm_weights", "\"raw\"", ESP_EFORMAT, "norm_weights"},
    {"vision_config", "{\"depth\":2}", ESP_EFORMAT, "missing key vision_config.hidden_size"},
    {"quantization", "{\"bits\":\"4\"}", ESP_EFORMAT, "quantization.bits"},
    {"quantization", "{\"bits\":4,\"mode\":\"nf4\"}", ESP_EUNSUPPORTED, "'nf4'"},
    {"quantization", "{\"bits\":4,\"model.x\":{\"bits\":-2}}", ESP_EFORMAT,
     "quantization.model.x.bits is -2"},
    {"quantization", "7", ESP_EFORMAT, "an object is accepted"},
    {"quantization_config", "{\"quant_method\":\"fp8\"}", ESP_EUNSUPPORTED, "'fp8' is not supported"},
    {"quantization_config", "{\"quant_method\":\"gptq\",\"bits\":4}", ESP_EUNSUPPORTED, "'gptq'"},
    {"quantization", "{\"bits\":4,\"quantize_activations\":true}", ESP_EUNSUPPORTED, "quantize_activations"},
};

static void test_bad_edits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_edits / sizeof bad_edits[0]; i++) {
        const char *const edits[1][2] = {{bad_edits[i].path, bad_edits[i].json}};
        struct esp_config c = {.hidden = 77};
        esp_error err;

        test_refused(read_edited(&c, edits, 1, NULL, &err), bad_edits[i].status, &err, bad_edits[i].part);
        assert_ptr_equal(strstr(err.message, "config.json: "), err.message);
        assert_int_equal(c.hidden, 77); /* untouched */
    }
}

static void test_case_7_not_finite(void **state)
{
    static const char *const texts[] = {"{\"rms_norm_eps\":NaN}",   "{\"rms_norm_eps\":Infinity}",
                                        "{\"rms_norm_eps\":1e999}", "{\"vocab_size\":99999999999999999999}",
                                        "{\"a\":1,\"a\":2}",        "{\"a\":\"\xff\"}"};
    const char *dir = test_tmpdir();

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct esp_config c;
        esp_error err;

        mf_write_text(dir, "config.json", texts[i]);
        test_refused(esp_config_load(&c, dir, NULL, &err), ESP_EFORMAT, &err, "config.json");
    }
}

static void test_family_values(void **state)
{
    struct esp_config c;

    (void)state;
    with(&c, TC "head_dim", NULL, "text_config.head_dim, taken as 256");
    with(&c, TC "linear_conv_kernel_dim", NULL, "taken as 4");
    with(&c, TC "rms_norm_eps", NULL, "1e-6");
    with(&c, RP "mrope_section", NULL, "[11,11,10]");
    with(&c, RP "partial_rotary_factor", NULL, NULL); /* also beside rope_parameters */
    assert_int_equal(c.rope.rotary_dims, 64);
    with(&c, TC "partial_rotary_factor", "0.5", "0.25 differs from");
    assert_int_equal(c.rope.rotary_dims, 64);
    with(&c, TC "eos_token_id", NULL, "no eos_token_id");
    assert_int_equal(c.n_eos, 0);
    with(&c, TC "mamba_ssm_dtype", "\"bfloat16\"", "float32");
    with(&c, TC "dtype", "\"int8\"", "'int8' is not known");
    with(&c, TC "mtp_num_hidden_layers", NULL, NULL);
    assert_int_equal(c.n_mtp_layer, 0);
}

static void test_other_spellings(void **state)
{
    struct esp_config c;

    (void)state;
    with(&c, TC "max_position_embeddings", "1e6", NULL);
    assert_int_equal(c.max_position, 1000000);
    with(&c, TC "full_attention_interval", "2", NULL); /* layer_types wins */
    assert_int_equal(c.n_full, 2);
    with(&c, TC "layer_types", NULL, NULL);
    assert_true(c.n_full == 2 && c.is_full[3]);
    with(&c, TC "layer_types",
         "[\"full_attention\",\"linear_attention\",\"linear_attention\",\"linear_attention\",\"linear_"
         "attention\","
         "\"linear_attention\",\"linear_attention\",\"linear_attention\"]",
         NULL);
    assert_true(c.n_full == 1 && c.is_full[0]);
    with(&c, "eos_token_id", "[4082,4084,4082]", NULL);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[0], 4082);
    with(&c, TC "dtype", "\"torch.float16\"", NULL);
    assert_int_equal(c.dtype, ESP_DTYPE_F16);
}

static void test_flat_and_old_rope(void **state)
{
    json_t *j = mf_config(), *text = json_object_get(j, "text_config");
    struct esp_warnings w = {.n = 0};
    struct esp_config c;
    esp_error err;

    (void)state;
    json_object_del(text, "rope_parameters");
    mf_set(text, "rope_theta", "5e5");
    mf_set(text, "rope_scaling", "{\"type\":\"mrope\",\"mrope_section\":[11,11,10]}");
    mf_set(text, "torch_dtype", "\"float32\"");
    json_object_del(text, "dtype");
    test_ok(esp_config_read(&c, text, NULL, "config.json", &w, &err), &err);
    assert_int_equal(w.n, 0);
    assert_int_equal(c.arch, ESP_ARCH_QWEN35);
    assert_string_equal(c.architecture, "qwen3_5_text");
    assert_true(c.rope.theta == 5e5);
    assert_int_equal(c.dtype, ESP_DTYPE_F32);
    assert_int_equal(c.tied_top, ESP_TIED_YES);
    assert_int_equal(c.tied_text, ESP_TIED_UNSAID);
    json_decref(j);
}

static void test_yarn(void **state)
{
    const char *const edits[3][2] = {{RP "rope_type", "\"yarn\""},
                                     {RP "factor", "4.0"},
                                     {RP "original_max_position_embeddings", "262144"}};
    const char *const mscale[3][2] = {{RP "rope_type", "\"yarn\""}, {RP "factor", "4.0"}, {RP "mscale", "1"}};
    const char *const below[2][2] = {{RP "rope_type", "\"yarn\""}, {RP "factor", "0.5"}};
    struct esp_warnings w = {.n = 0};
    struct esp_config c;
    esp_error err;

    (void)state;
    test_ok(read_edited(&c, edits, 3, &w, &err), &err);
    assert_int_equal(w.n, 0);
    assert_int_equal(c.rope.type, ESP_ROPE_YARN);
    assert_true(c.rope.factor == 4 && c.rope.beta_fast == 32 && c.rope.beta_slow == 1);
    assert_int_equal(c.rope.original_max, 262144);
    assert_true(fabs(c.rope.attention_factor - 1.138629436) < 1e-8);
    test_refused(read_edited(&c, mscale, 3, NULL, &err), ESP_EUNSUPPORTED, &err, "mscale");
    test_refused(read_edited(&c, below, 2, NULL, &err), ESP_EFORMAT, &err, "factor is 0.5");
}

static void test_scaling(void **state)
{
    static const char *const bad[] = {"linear",   "yarn",   "yarn:",     "yarn:0.9", "yarn:2000",
                                      "yarn:2:0", "yarn:x", "yarn:2:1x", "yarn:nan"};
    const char *const edits[3][2] = {
        {RP "rope_type", "\"yarn\""}, {RP "factor", "4.0"}, {RP "original_max_position_embeddings", "1000"}};
    struct esp_config c;
    uint32_t plain;
    esp_error err;

    (void)state;
    test_ok(read_edited(&c, edits, 0, NULL, &err), &err);
    plain = c.max_position;
    test_ok(esp_config_scale_rope(&c, NULL, &err), &err);
    test_ok(esp_config_scale_rope(&c, "model", &err), &err);
    test_ok(esp_config_scale_rope(&c, "none", &err), &err);
    assert_int_equal(c.rope.type, ESP_ROPE_DEFAULT);
    assert_int_equal(c.max_position, plain);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        test_refused(esp_config_scale_rope(&c, bad[i], &err), ESP_EINVAL, &err, bad[i]);
    assert_int_equal(c.max_position, plain);
    test_ok(esp_config_scale_rope(&c, "yarn:4", &err), &err);
    assert_int_equal(c.rope.type, ESP_ROPE_YARN);
    assert_int_equal(c.rope.original_max, plain);
    assert_int_equal(c.max_position, 4 * plain);
    assert_true(fabs(c.rope.attention_factor - 1.138629436) < 1e-8 && c.rope.beta_fast == 32);
    test_ok(esp_config_scale_rope(&c, "none", &err), &err); /* what the model was trained with */
    assert_int_equal(c.max_position, plain);
    /* of one whose file asks for it already */
    test_ok(read_edited(&c, edits, 3, NULL, &err), &err);
    test_ok(esp_config_scale_rope(&c, "yarn:1.5", &err), &err);
    assert_int_equal(c.rope.original_max, 1000);
    assert_int_equal(c.max_position, 1500);
    test_ok(esp_config_scale_rope(&c, "yarn:2:700", &err), &err);
    assert_int_equal(c.max_position, 1400);
}

#define VISION_JSON                                                                                          \
    "{\"depth\":2,\"hidden_size\":64,\"intermediate_size\":128,\"num_heads\":4,\"in_channels\":3,\"patch_"   \
    "size\":16,"                                                                                             \
    "\"spatial_merge_size\":2,\"temporal_patch_size\":2,\"out_hidden_size\":256,\"num_position_"             \
    "embeddings\":64,"                                                                                       \
    "\"hidden_act\":\"gelu_pytorch_tanh\",\"deepstack_visual_indexes\":[]}"

static void test_vision(void **state)
{
    static const struct bad bad[] = {
        {"vision_config.deepstack_visual_indexes", "[5]", ESP_EUNSUPPORTED, "deepstack"},
        {"vision_config.out_hidden_size", "128", ESP_EFORMAT,
         "differs from the text model's hidden_size 256"},
        {"vision_config.num_position_embeddings", "65", ESP_EFORMAT, "not a square"},
        {"vision_config.num_heads", "5", ESP_EFORMAT, "num_heads 5"},
        {"vision_config.hidden_act", "\"gelu\"", ESP_EUNSUPPORTED, "'gelu'"},
        {"image_token_id", "4096", ESP_EFORMAT, "image_token_id is 4096"},
        {"image_token_id", NULL, ESP_EFORMAT, "missing key image_token_id"},
        {"vision_end_token_id", "-1", ESP_EFORMAT, "vision_end_token_id"},
    };
    struct esp_config c;

    (void)state;
    with(&c, "vision_config", VISION_JSON, NULL);
    assert_true(c.vision.present);
    assert_int_equal(c.vision.head_dim, 16);
    assert_int_equal(c.vision.position_side, 8);
    assert_int_equal(c.vision.image_token, 4088);
    assert_int_equal(c.vision.vision_end_token, 4086);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *const edits[2][2] = {{"vision_config", VISION_JSON}, {bad[i].path, bad[i].json}};
        esp_error err;

        test_refused(read_edited(&c, edits, 2, NULL, &err), bad[i].status, &err, bad[i].part);
    }
    {
        const char *const edits[2][2] = {{"vision_config", VISION_JSON}, {"language_model_only", "true"}};
        esp_error err;

        test_ok(read_edited(&c, edits, 2, NULL, &err), &err);
        assert_false(c.vision.present);
    }
}

static void test_moe(void **state)
{
    static const char *const edits[][2] = {
        {"architectures", "[\"Qwen3_5MoeForConditionalGeneration\"]"},
        {"model_type", "\"qwen3_5_moe\""},
        {TC "model_type", "\"qwen3_5_moe_text\""},
        {TC "num_experts", "256"},
        {TC "num_experts_per_tok", "8"},
        {TC "moe_intermediate_size", "512"},
        {TC "shared_expert_intermediate_size", "512"},
        {TC "mlp_only_layers", "[]"},
        {TC "intermediate_size", NULL},
    };
    static const struct bad bad[] = {
        {TC "num_experts_per_tok", "257", ESP_EFORMAT, "num_experts_per_tok 257"},
        {TC "num_experts", NULL, ESP_EFORMAT, "missing key text_config.num_experts"},
        {TC "mlp_only_layers", "[1]", ESP_EUNSUPPORTED, "mlp_only_layers"},
        {TC "decoder_sparse_step", "2", ESP_EFORMAT, "decoder_sparse_step"},
        {TC "norm_topk_prob", "\"no\"", ESP_EFORMAT, "norm_topk_prob"},
    };
    enum { N = sizeof edits / sizeof edits[0] };
    const char *all[N + 1][2];
    struct esp_config c;
    esp_error err;

    (void)state;
    memcpy(all, edits, sizeof edits);
    test_ok(read_edited(&c, edits, N, NULL, &err), &err);
    assert_int_equal(c.arch, ESP_ARCH_QWEN35_MOE);
    assert_int_equal(c.n_expert, 256);
    assert_int_equal(c.n_expert_used, 8);
    assert_int_equal(c.ffn, 0);
    assert_true(c.norm_topk_prob);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        all[N][0] = bad[i].path;
        all[N][1] = bad[i].json;
        test_refused(read_edited(&c, (const char *const(*)[2])all, N + 1, NULL, &err), bad[i].status, &err,
                     bad[i].part);
    }
}

static void test_generation(void **state)
{
    static const struct bad bad[] = {
        {"temperature", "-0.1", ESP_EFORMAT, "generation_config.temperature"},
        {"top_p", "0", ESP_EFORMAT, "top_p"},
        {"top_p", "1.1", ESP_EFORMAT, "top_p"},
        {"top_k", "-2", ESP_EFORMAT, "top_k"},
        {"top_k", "1.5", ESP_EFORMAT, "top_k"},
        {"do_sample", "\"yes\"", ESP_EFORMAT, "do_sample"},
        {"repetition_penalty", "0", ESP_EFORMAT, "repetition_penalty"},
        {"eos_token_id", "{}", ESP_EFORMAT, "eos_token_id"},
    };
    json_t *config = mf_config();
    struct esp_config c;
    esp_error err;
    json_t *g;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        g = json_object();
        mf_set(g, bad[i].path, bad[i].json);
        test_refused(esp_config_read(&c, config, g, "config.json", NULL, &err), bad[i].status, &err,
                     bad[i].part);
        json_decref(g);
    }
    g = json_object();
    mf_set(g, "top_k", "-1");
    mf_set(g, "temperature", "null");
    mf_set(g, "eos_token_id", "7");
    test_ok(esp_config_read(&c, config, g, "config.json", NULL, &err), &err);
    assert_true(c.generation.has_top_k && c.generation.top_k == 0);
    assert_false(c.generation.has_temperature);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[0], 7);
    json_decref(g);
    test_refused(esp_config_read(&c, json_null(), NULL, "x", NULL, &err), ESP_EFORMAT, &err, "an object");
    json_decref(config);
}

static void test_every_allocation_fails(void **state)
{
    int64_t n = 0;

    (void)state;
    for (;; n++) {
        struct esp_config c = {.hidden = 1};
        esp_error err;
        esp_status s;

        esp_mem_fail_at(n);
        s = esp_config_load(&c, test_path("models/demo"), NULL, &err);
        esp_mem_fail_at(-1);
        if (s == ESP_OK) {
            esp_config_free(&c);
            break;
        }
        test_refused(s, ESP_ENOMEM, &err, NULL);
    }
    assert_true(n >= 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo),
        cmocka_unit_test(test_corpus_configs),
        cmocka_unit_test(test_bad_edits),
        cmocka_unit_test(test_case_7_not_finite),
        cmocka_unit_test(test_family_values),
        cmocka_unit_test(test_other_spellings),
        cmocka_unit_test(test_flat_and_old_rope),
        cmocka_unit_test(test_yarn),
        cmocka_unit_test(test_scaling),
        cmocka_unit_test(test_vision),
        cmocka_unit_test(test_moe),
        cmocka_unit_test(test_generation),
        cmocka_unit_test(test_every_allocation_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
