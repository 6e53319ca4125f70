/*
 * Pictures: 8-bit RGB, written as PNG by Sean Barrett's stb_image_write (third_party).
 */
#ifndef HIROBA_APPS_PICTURE_H
#define HIROBA_APPS_PICTURE_H

#include "common.h"

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#include "third_party/stb_image_write.h"
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

/* A colour as linear light: red, green and blue, 0 to 1. */
struct light {
    double red, green, blue;
};

/* The largest width and height of a picture. Finer ones are averaged. */
enum { PICTURE_EDGE_MAX = 1024 };

/* The transfer function of the sRGB standard (IEC 61966-2-1), from light to a byte and back. */
static inline unsigned char as_byte(double light)
{
    double value = light <= 0.0031308 ? 12.92 * light : 1.055 * pow(light, 1.0 / 2.4) - 0.055;
    return (unsigned char)(255.0 * fmin(fmax(value, 0.0), 1.0) + 0.5);
}

static inline double as_light(double value)
{
    return value <= 0.04045 ? value / 12.92 : pow((value + 0.055) / 1.055, 2.4);
}

static inline struct light mixed(struct light a, struct light b, double share_of_b)
{
    return (struct light){a.red + share_of_b * (b.red - a.red),
                          a.green + share_of_b * (b.green - a.green),
                          a.blue + share_of_b * (b.blue - a.blue)};
}

/* Returns true if a picture can be written to the path. Node 0 calls this before the computation. */
static inline bool can_write(const char *path)
{
    FILE *file = fopen(path, "ab");
    if (file == NULL)
        return complain("cannot write the picture %.200s: %s", path, strerror(errno));
    fclose(file);
    return true;
}

/*
 * Writes a picture of n x n points, whose colours `colour(data, row, column)` returns. The points of one
 * pixel are averaged as light, which smooths edges like a camera.
 */
static inline bool write_picture(const char *path, size_t n,
                                 struct light (*colour)(const void *, size_t, size_t),
                                 const void *data)
{
    size_t points = (n + PICTURE_EDGE_MAX - 1) / PICTURE_EDGE_MAX; /* points along a pixel's edge */
    size_t edge = n / points;                                      /* a remainder is cut off */
    unsigned char *pixels = malloc(3 * edge * edge), *pixel = pixels;
    if (pixels == NULL)
        return complain("no memory for a picture of %zu x %zu pixels", edge, edge);
    for (size_t row = 0; row < edge; row++) {
        for (size_t column = 0; column < edge; column++, pixel += 3) {
            struct light sum = {0.0, 0.0, 0.0};
            for (size_t point = 0; point < points * points; point++) {
                struct light light = colour(data, row * points + point / points,
                                            column * points + point % points);
                sum = (struct light){sum.red + light.red, sum.green + light.green,
                                     sum.blue + light.blue};
            }
            double scale = 1.0 / (double)(points * points);
            pixel[0] = as_byte(sum.red * scale);
            pixel[1] = as_byte(sum.green * scale);
            pixel[2] = as_byte(sum.blue * scale);
        }
    }
    errno = 0;
    bool good = stbi_write_png(path, (int)edge, (int)edge, 3, pixels, (int)(3 * edge)) != 0;
    free(pixels);
    return good || complain("cannot write the picture %.200s: %s", path,
                            errno != 0 ? strerror(errno) : "out of memory");
}

#endif
