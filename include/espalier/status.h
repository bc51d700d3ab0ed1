/*
 * Status codes and the error record shared by every public espalier header.
 *
 * A fallible call returns an esp_status (0 is success) and takes a nullable esp_error as last argument. The
 * status is for programs; the message is for people: what was refused, which value, where, and what would be
 * accepted.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESPALIER_STATUS_H
#define ESPALIER_STATUS_H

#if defined(__GNUC__)
#define ESP_API __attribute__((visibility("default")))
#else
#define ESP_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum esp_status {
    ESP_OK = 0,
    ESP_EINVAL = 1,       /* an argument or option is wrong; nothing was done */
    ESP_ENOMEM = 2,       /* the operating system gave no memory, or a stated maximum was reached */
    ESP_EIO = 3,          /* reading or writing a file failed */
    ESP_EFORMAT = 4,      /* a file's bytes do not mean what its format says */
    ESP_ENOTFOUND = 5,    /* no such file, tensor, token, sequence */
    ESP_EUNSUPPORTED = 6, /* valid, but not built into this version */
    ESP_ENOFIT =
        7, /* would exceed the context, the pool or the memory budget; the message has both numbers */
    ESP_EDEVICE = 8,    /* a device is missing or failed */
    ESP_ECANCELLED = 9, /* the caller asked to stop */
    ESP_ESTATE = 10,    /* the call is not allowed in the object's present state */
    ESP_ENUMERIC = 11   /* NaN or infinity where a finite number is required */
} esp_status;

/* Longest message in bytes with its final zero. Longer ones are cut and end in "...". */
#define ESP_ERROR_MESSAGE_BYTES 768

typedef struct esp_error {
    esp_status status;
    char message[ESP_ERROR_MESSAGE_BYTES]; /* UTF-8, one line, zero-terminated */
} esp_error;

/* Short name of a status, such as "format"; never NULL. */
ESP_API const char *esp_status_name(esp_status s);

#ifdef __cplusplus
}
#endif
#endif
