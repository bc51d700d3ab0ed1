/*
 * See the header. A pid may belong to another program by now: the process must carry this program's name.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/running.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "program/output.h"

enum { MAX_PATH = 4096 };

static void folder(char out[MAX_PATH])
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");

    if (runtime && *runtime)
        snprintf(out, MAX_PATH, "%s/espalier", runtime);
    else
        snprintf(out, MAX_PATH, "/tmp/espalier-%u", (unsigned)getuid());
}

/* The folder must be ours: others could plant files for `stop` to follow. */
static bool is_ours(const char *dir)
{
    struct stat st;

    return lstat(dir, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == getuid() && (st.st_mode & 022) == 0;
}

static bool file_of(long pid, char out[MAX_PATH + 32])
{
    char dir[MAX_PATH];

    folder(dir);
    return snprintf(out, MAX_PATH + 32, "%s/%ld.json", dir, pid) < MAX_PATH + 32;
}

void esp_running_add(json_t *info)
{
    char dir[MAX_PATH], path[MAX_PATH + 32];

    folder(dir);
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        esp_say_detail("%s: %s; 'espalier ps' will not know this server", dir, strerror(errno));
    json_object_set_new(info, "pid", json_integer((json_int_t)getpid()));
    if (is_ours(dir) && file_of((long)getpid(), path) && json_dump_file(info, path, JSON_COMPACT) != 0)
        esp_say_detail("%s: cannot be written; 'espalier ps' will not know this server", path);
    json_decref(info);
}

void esp_running_remove(void)
{
    char path[MAX_PATH + 32];

    if (file_of((long)getpid(), path))
        unlink(path);
}

static bool is_running(long pid)
{
    char path[64], name[32] = "";
    FILE *f;

    snprintf(path, sizeof path, "/proc/%ld/comm", pid);
    f = fopen(path, "r");
    if (!f)
        return false;
    if (!fgets(name, sizeof name, f))
        name[0] = '\0';
    fclose(f);
    return strncmp(name, "espalier", 8) == 0;
}

/* Resident bytes; 0 when the system does not say. */
static json_int_t memory_of(long pid)
{
    char path[64], text[128] = "", *end;
    long pages;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%ld/statm", pid);
    f = fopen(path, "r");
    if (!f)
        return 0;
    if (!fgets(text, sizeof text, f))
        text[0] = '\0';
    fclose(f);
    strtol(text, &end, 10);
    pages = strtol(end, NULL, 10);
    return (json_int_t)pages * sysconf(_SC_PAGESIZE);
}

json_t *esp_running_list(void)
{
    char dir[MAX_PATH], path[MAX_PATH + 300];
    json_t *list = json_array();
    struct dirent *e;
    DIR *d;

    folder(dir);
    d = is_ours(dir) ? opendir(dir) : NULL;
    while (d && (e = readdir(d)) != NULL) {
        char *end;
        const long pid = strtol(e->d_name, &end, 10);
        json_t *v;

        if (pid <= 0 || strcmp(end, ".json") != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        v = is_running(pid) ? json_load_file(path, 0, NULL) : NULL;
        if (!v) {
            unlink(path);
            continue;
        }
        json_object_set_new(v, "pid", json_integer((json_int_t)pid));
        json_object_set_new(v, "memory_bytes", json_integer(memory_of(pid)));
        json_array_append_new(list, v);
    }
    if (d)
        closedir(d);
    return list;
}
