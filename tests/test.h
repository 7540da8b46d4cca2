/* tests/test.h - what every unit test binary shares: run all, one by name, or list.
 *
 *   test_x            all tests      test_x -f NAME   those whose name contains NAME
 *   test_x -l         list           SEED=n           the seed (printed; default 1)
 * A test that outlives TIMEOUT seconds (default 120, by environment) ends the binary.
 * A test may include the .c file that it tests. SHARED names the folder of recorded data;
 * test_shared() gives a path in it, or skips the test where the folder is absent. */
#ifndef TESTS_TEST_H
#define TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static inline uint64_t test_seed(void)
{
    const char *s = getenv("SEED");
    return s ? strtoull(s, NULL, 10) : 1;
}

/* xorshift64*: enough for tests, the same everywhere */
static inline uint64_t test_rand(uint64_t *state)
{
    uint64_t x = *state ? *state : 88172645463325252ull;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 2685821657736338717ull;
}

static inline const char *test_shared(const char *rel)
{
    static char path[4096];
    const char *dir = getenv("SHARED");
    snprintf(path, sizeof(path), "%s/%s", dir ? dir : "../shared", rel);
    if (access(path, R_OK) != 0)
        skip();
    return path;
}

/* The demo model, or skip. */
static inline const char *test_demo_model(void)
{
    const char *p = getenv("DEMO_MODEL");
    p = p ? p : "var/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (access(p, R_OK) != 0)
        skip();
    return p;
}

static inline int test_main(int argc, char **argv, const char *group,
                            const struct CMUnitTest *tests, size_t n)
{
    static char filter[256];
    const char *limit = getenv("TIMEOUT");
    alarm(limit ? (unsigned)atoi(limit) : 120);
    if (argc == 2 && !strcmp(argv[1], "-l")) {
        for (size_t i = 0; i < n; i++)
            puts(tests[i].name);
        return 0;
    }
    if (argc == 3 && !strcmp(argv[1], "-f")) {
        snprintf(filter, sizeof(filter), "*%s*", argv[2]);
        cmocka_set_test_filter(filter);
    }
    printf("# seed %llu\n", (unsigned long long)test_seed());
    fflush(stdout);
    return _cmocka_run_group_tests(group, tests, n, NULL, NULL);
}

#define TEST_MAIN(group, tests)                                                          \
    int main(int argc, char **argv)                                                      \
    {                                                                                    \
        return test_main(argc, argv, group, tests, sizeof(tests) / sizeof((tests)[0]));  \
    }

#endif
