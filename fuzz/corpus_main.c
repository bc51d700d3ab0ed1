/*
 * Plain driver for a fuzz target: runs every file of the folders and files named on the command line once.
 * This is how the corpora run in `make test`; libFuzzer brings its own main for real fuzzing.
 *
 * SPDX-License-Identifier: MIT
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data;
    long size;

    if (!f || fseek(f, 0, SEEK_END) != 0 || (size = ftell(f)) < 0) {
        fprintf(stderr, "%s: cannot read\n", path);
        return -1;
    }
    rewind(f);
    data = malloc(size ? (size_t)size : 1);
    if (!data || fread(data, 1, (size_t)size, f) != (size_t)size) {
        fprintf(stderr, "%s: cannot read\n", path);
        return -1;
    }
    fclose(f);
    LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    return 1;
}

static int run_folder(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;

    if (!d)
        return -1;
    for (const struct dirent *e = readdir(d); e; e = readdir(d)) {
        char file[4096];
        struct stat st;

        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        if (stat(file, &st) == 0 && S_ISREG(st.st_mode)) {
            if (run_file(file) < 0)
                return -1;
            n++;
        }
    }
    closedir(d);
    return n;
}

int main(int argc, char **argv)
{
    int total = 0;

    for (int i = 1; i < argc; i++) {
        struct stat st;
        int n = stat(argv[i], &st) != 0 ? -1 : S_ISDIR(st.st_mode) ? run_folder(argv[i]) : run_file(argv[i]);

        if (n < 0) {
            fprintf(stderr, "%s: cannot read\n", argv[i]);
            return 1;
        }
        total += n;
    }
    printf("%d inputs\n", total);
    return total > 0 ? 0 : 1; /* an empty corpus is a broken test */
}
