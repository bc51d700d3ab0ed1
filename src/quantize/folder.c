/*
 * See folder.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/map.h"
#include "base/mem.h"
#include "quantize/files.h"

static bool ours(const char *name)
{
    static const char *const suffix[] = {
        ".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth", ".gguf", ".tmp"};
    const size_t n = strlen(name);

    if (name[0] == '.' || strcmp(name, "config.json") == 0 || strcmp(name, "espalier_recipe.json") == 0)
        return true;
    for (size_t i = 0; i < sizeof suffix / sizeof suffix[0]; i++) {
        const size_t k = strlen(suffix[i]);

        if (n >= k && strcmp(name + n - k, suffix[i]) == 0)
            return true;
    }
    return false;
}

static esp_status copy_one(const char *work, const char *source, const char *name, esp_error *err)
{
    char *from = esp_path_join(source, name), *to = esp_path_join(work, name);
    struct stat st;
    esp_status s = ESP_OK;

    if (!from || !to)
        s = esp_fail(err, ESP_ENOMEM, "%s: out of memory", name);
    else if (stat(from, &st) == 0 && S_ISREG(st.st_mode))
        s = esp_file_copy(to, from, err);
    esp_free(from);
    esp_free(to);
    return s;
}

esp_status esp_folder_copy_text(const char *work, const char *source, bool with_config, esp_error *err)
{
    DIR *d = opendir(source);
    const struct dirent *e;
    esp_status s = ESP_OK;

    if (!d)
        return esp_fail(err, ESP_EIO, "%s: %s", source, strerror(errno));
    while (s == ESP_OK && (e = readdir(d)) != NULL)
        if (!ours(e->d_name))
            s = copy_one(work, source, e->d_name, err);
    closedir(d);
    return s == ESP_OK && with_config ? copy_one(work, source, "config.json", err) : s;
}

esp_status esp_folder_publish(const char *work, const char *output, esp_error *err)
{
    if (esp_file_exists(output))
        return esp_fail(err, ESP_ESTATE, "%s exists by now; the finished folder is %s", output, work);
    if (rename(work, output) != 0)
        return esp_fail(err, ESP_EIO, "%s: cannot be renamed to %s: %s", work, output, strerror(errno));
    return ESP_OK;
}
