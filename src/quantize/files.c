/*
 * See files.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/map.h"
#include "base/mem.h"

bool esp_file_exists(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0;
}

static bool write_all(int fd, const void *data, size_t bytes)
{
    const char *p = data;

    while (bytes) {
        const ssize_t n = write(fd, p, bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        bytes -= (size_t)n;
    }
    return true;
}

esp_status esp_file_write(const char *path, const struct esp_part_bytes *parts, uint32_t n, esp_error *err)
{
    const size_t len = strlen(path) + 5;
    char *tmp = esp_alloc(len);
    bool ok = true;
    int fd, why = 0;

    if (!tmp)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", path);
    snprintf(tmp, len, "%s.tmp", path);
    fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    ok = fd >= 0;
    for (uint32_t i = 0; ok && i < n; i++)
        ok = write_all(fd, parts[i].data, parts[i].bytes);
    ok = ok && fsync(fd) == 0;
    if (!ok)
        why = errno;
    if (fd >= 0 && close(fd) != 0 && ok) {
        ok = false;
        why = errno;
    }
    if (ok && rename(tmp, path) != 0) {
        ok = false;
        why = errno;
    }
    if (!ok && fd >= 0)
        (void)unlink(tmp);
    esp_free(tmp);
    return ok ? ESP_OK : esp_fail(err, ESP_EIO, "%s: cannot be written: %s", path, strerror(why));
}

esp_status esp_file_copy(const char *to, const char *from, esp_error *err)
{
    struct esp_map m;
    esp_status s;

    ESP_TRY(esp_map_open(&m, from, err));
    s = esp_file_write(to, &(struct esp_part_bytes){m.data, m.size}, 1, err);
    esp_map_close(&m);
    return s;
}

esp_status esp_folder_make(const char *path, esp_error *err)
{
    struct stat st;

    if (mkdir(path, 0777) == 0)
        return ESP_OK;
    if (errno == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return ESP_OK;
    return esp_fail(err, ESP_EIO, "%s: the folder cannot be made: %s", path, strerror(errno));
}

/* Unlink the plain files of a folder, all or those left by writers. */
static esp_status unlink_files(const char *path, bool only_temporary, esp_error *err)
{
    DIR *d = opendir(path);
    const struct dirent *e;
    esp_status s = ESP_OK;

    if (!d)
        return errno == ENOENT ? ESP_OK : esp_fail(err, ESP_EIO, "%s: %s", path, strerror(errno));
    while ((e = readdir(d)) != NULL) {
        char *name;

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (only_temporary && !strstr(e->d_name, ".tmp"))
            continue;
        name = esp_path_join(path, e->d_name);
        if (!name)
            s = esp_fail(err, ESP_ENOMEM, "%s: out of memory", path);
        else if (unlink(name) != 0)
            s = esp_fail(err, ESP_EIO, "%s: %s", name, strerror(errno));
        esp_free(name);
    }
    closedir(d);
    return s;
}

esp_status esp_folder_remove(const char *path, esp_error *err)
{
    ESP_TRY(unlink_files(path, false, err));
    if (rmdir(path) != 0 && errno != ENOENT)
        return esp_fail(err, ESP_EIO, "%s: %s", path, strerror(errno));
    return ESP_OK;
}

esp_status esp_folder_sweep(const char *path, esp_error *err)
{
    return unlink_files(path, true, err);
}

esp_status esp_disk_free(uint64_t *out, const char *path, esp_error *err)
{
    struct statvfs v;

    if (statvfs(path, &v) != 0)
        return esp_fail(err, ESP_EIO, "%s: %s", path, strerror(errno));
    *out = (uint64_t)v.f_bavail * v.f_frsize;
    return ESP_OK;
}
