/* What a picture of the screen takes by itself: XGetImage of the root window, and the PNG of it at the quickest setting.
 * Usage: screen ROUNDS, with DISPLAY set; it prints the microseconds of each round, one a line. */

#include <X11/Xlib.h>
#include <X11/Xutil.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static size_t written;

static void count(png_structp png, png_bytep bytes, size_t length) {
    (void)png;
    (void)bytes;
    written += length;
}

static void flush(png_structp png) { (void)png; }

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 1;
    Display *display = XOpenDisplay(NULL);
    if (!display) {
        fprintf(stderr, "the display can't be opened\n");
        return 1;
    }
    Window root = DefaultRootWindow(display);
    int width = DisplayWidth(display, DefaultScreen(display)), height = DisplayHeight(display, DefaultScreen(display));
    for (int round = 0; round < rounds; round++) {
        double begun = now();
        XImage *image = XGetImage(display, root, 0, 0, width, height, AllPlanes, ZPixmap);
        if (!image || image->bits_per_pixel != 32) {
            fprintf(stderr, "the screen is not what it should be\n");
            return 1;
        }
        png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
        png_infop info = png_create_info_struct(png);
        written = 0;
        png_set_write_fn(png, NULL, count, flush);
        png_set_compression_level(png, 1);
        png_set_filter(png, 0, PNG_FILTER_SUB);
        png_set_IHDR(png, info, width, height, 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                     PNG_FILTER_TYPE_DEFAULT);
        png_write_info(png, info);
        png_set_filler(png, 0, PNG_FILLER_AFTER);
        png_set_bgr(png);
        for (int y = 0; y < height; y++)
            png_write_row(png, (png_bytep)image->data + (size_t)y * image->bytes_per_line);
        png_write_end(png, info);
        png_destroy_write_struct(&png, &info);
        XDestroyImage(image);
        printf("%.0f\n", now() - begun);
        if (written < 1000) {
            fprintf(stderr, "the picture is too small to be one\n");
            return 1;
        }
    }
    return 0;
}
