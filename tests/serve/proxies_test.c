/*
 * Who asks behind proxies: what X-Forwarded-For may say and what it may not; in the log, and for the right to
 * administer a server without keys.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/client.h"

#include <stdio.h>
#include <string.h>

#include "serve/proxies.h"

static void test_blocks(void **state)
{
    static const struct {
        const char *block, *in, *out;
    } cases[] = {{"10.0.0.0/8", "10.255.1.2", "11.0.0.1"},
                 {"192.168.4.0/22", "192.168.7.255", "192.168.8.0"},
                 {"127.0.0.1", "127.0.0.1", "127.0.0.2"},
                 {"0.0.0.0/0", "8.8.8.8", "::1"},
                 {"fd00::/8", "fdff::1", "fe00::1"},
                 {"::1", "::1", "127.0.0.1"},
                 {"10.1.2.3/32", "::ffff:10.1.2.3", "10.1.2.4"},
                 {"unix", "unix", "127.0.0.1"},
                 {"10.1.2.128/25", "10.1.2.200", "10.1.2.127"}};
    static const char *const bad[] = {"",       "10.0.0",      "10.0.0.0/33", "::/129",      "10.0.0.0/",
                                      "unix/8", "10.0.0.0/-1", "10.0.0.0/8x", "example.org", "*"};
    struct esp_cidr c;
    esp_error err;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        test_ok(esp_cidr_parse(&c, cases[i].block, &err), &err);
        if (!esp_cidr_has(&c, 1, cases[i].in) || esp_cidr_has(&c, 1, cases[i].out))
            fail_msg("%s", cases[i].block);
        assert_false(esp_cidr_has(&c, 1, "nonsense"));
        assert_false(esp_cidr_has(&c, 0, cases[i].in));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        test_refused(esp_cidr_parse(&c, bad[i], &err), ESP_EINVAL, &err, "10.0.0.0/8");
}

static void test_who(void **state)
{
    static const struct {
        const char *peer, *forwarded, *client;
    } cases[] = {
        {"9.9.9.9", "1.2.3.4", "9.9.9.9"}, /* no proxy of ours: not believed */
        {"10.0.0.1", NULL, "10.0.0.1"},
        {"10.0.0.1", "", "10.0.0.1"},
        {"10.0.0.1", "1.2.3.4", "1.2.3.4"},
        {"10.0.0.1", "127.0.0.1, 1.2.3.4", "1.2.3.4"}, /* the client's own claim */
        {"10.0.0.1", "5.6.7.8, 1.2.3.4 ,10.0.0.2", "1.2.3.4"},
        {"10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"},
        {"10.0.0.1", "5.6.7.8, unknown, 10.0.0.2", "10.0.0.2"}, /* what cannot be read ends it */
        {"10.0.0.1", "unix", "10.0.0.1"},
        {"10.0.0.1", "1.2.3.4:555", "1.2.3.4"},
        {"10.0.0.1", "[2001:db8::1]:80", "2001:db8::1"},
        {"10.0.0.1", "2001:db8::2", "2001:db8::2"},
        {"10.0.0.1", ",,", "10.0.0.1"},
        {"unix", "1.2.3.4", "1.2.3.4"},
    };
    struct esp_cidr list[2];
    char client[64], many[400];
    esp_error err;

    (void)state;
    test_ok(esp_cidr_parse(&list[0], "10.0.0.0/8", &err), &err);
    test_ok(esp_cidr_parse(&list[1], "unix", &err), &err);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        esp_client_address(client, sizeof client, list, 2, cases[i].peer, cases[i].forwarded);
        if (strcmp(client, cases[i].client) != 0)
            fail_msg("%s by %s is %s, not %s", cases[i].forwarded, cases[i].peer, client, cases[i].client);
    }
    memset(many, 'a', sizeof many - 1);
    many[sizeof many - 1] = '\0';
    esp_client_address(client, sizeof client, list, 2, "unix", many);
    assert_string_equal(client, "unix");
}

/* The proxy's own header is the last one; a caller from elsewhere is no administrator, one from here is. */
static void test_server(void **state)
{
    struct server s;
    struct reply r;

    (void)state;
    server_init(&s);
    s.o.trusted_proxies[s.o.n_proxy++] = "127.0.0.1";
    server_start(&s);
    r = client_do(&s, "POST", "/admin/log-level",
                  "X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-For: 203.0.113.9\r\n", "{\"level\":\"info\"}");
    assert_int_equal(r.status, 403);
    assert_string_equal(text_at(r.json, "error.code"), "admin_required");
    reply_free(&r);
    assert_true(server_logged(&s, "client=203.0.113.9"));
    r = client_do(&s, "POST", "/admin/log-level", NULL, "{\"level\":\"info\"}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    server_stop(&s);
}

static void test_bad_option(void **state)
{
    struct esp_serve_opts o;
    esp_error err;

    (void)state;
    esp_serve_defaults(&o);
    o.port = 0;
    o.trusted_proxies[o.n_proxy++] = "proxy.example.org";
    test_refused(esp_serve(&o, &err), ESP_EINVAL, &err, "proxy.example.org");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_who),
        cmocka_unit_test(test_server),
        cmocka_unit_test(test_bad_option),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
