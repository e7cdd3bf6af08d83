/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Host names.
 *
 * A guest's names are normalised by egress_normalise_name(), which is a few comparisons a byte and calls nothing: a DNS
 * question carries A-labels or it is not a host name. What an operator writes goes through egress_written_name() once, at load:
 * IDNs become A-labels as UTS #46 says, non-transitional (IDNA 2008's "ß" stays what it is), and a label that only looks
 * like an A-label is refused.
 *
 * Public suffixes are those that Debian built into libpsl, ICANN's and the private ones, and not the newest file that
 * lies about: what a policy means then depends on the image alone, is the same for every process that loads it, and needs no
 * file; the data are as new as the image, as they would be anyway.
 */

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <idn2.h>
#include <libpsl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "policy/policy-egress.h"

static bool label_is_fine(const char *s, size_t n) {
        if (n < 1 || n > 63 || s[0] == '-' || s[n - 1] == '-')
                return false;

        for (size_t i = 0; i < n; i++)
                if (!isascii((unsigned char) s[i]) || (!isalnum((unsigned char) s[i]) && s[i] != '-'))
                        return false;
        return true;
}

/* inet_aton() and URL parsers take "127.1" and "0x7f000001" for addresses: they all end in a number. */
static bool label_is_number(const char *s, size_t n) {
        if (n > 1 && s[0] == '0' && (s[1] == 'x' || s[1] == 'X'))
                return strspn(s + 2, "0123456789abcdefABCDEF") >= n - 2;
        return strspn(s, "0123456789") >= n;
}

int egress_normalise_name(const char *name, char ret[static 254]) {
        char copy[254];
        size_t n;

        n = strlen(name);
        if (n > 0 && name[n - 1] == '.')
                n--;
        if (n < 1 || n > 253)
                return -EINVAL;

        for (size_t start = 0; start <= n;) {
                size_t end = start;

                while (end < n && name[end] != '.')
                        end++;
                if (!label_is_fine(name + start, end - start))
                        return -EINVAL;
                if (end == n && label_is_number(name + start, end - start))
                        return -EINVAL;
                start = end + 1;
        }

        for (size_t i = 0; i < n; i++)
                copy[i] = (char) tolower((unsigned char) name[i]);
        copy[n] = '\0';
        memcpy(ret, copy, n + 1);
        return 0;
}

static bool is_address(const char *name) {
        const char *last = strrchr(name, '.');
        uint8_t address[16];

        last = last ? last + 1 : name;
        return *name == '[' || inet_pton(AF_INET6, name, address) == 1 || (*last && label_is_number(last, strlen(last)));
}

const char *egress_name_fault(const char *name) {
        static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-";

        if (*name == '\0')
                return "must be a host name, not empty";
        if (strchr(name, '*'))
                return "must be a host name: a \"*\" stands in one place alone, before the first dot of a rule's name (\"*.example.org\")";
        if (*name == '.' || strstr(name, ".."))
                return "must be a host name without empty labels: dots stand between labels, and at most one at the end";
        if (is_address(name))
                return "must be a host name, not an address";
        if (strchr(name, '_'))
                return "must be a host name, and none has \"_\"";

        for (const char *p = name; *p;) {
                size_t n = strspn(p, letters);

                if (p[n] != '.' && p[n] != '\0')
                        return "must be a host name alone: letters, digits, \"-\" and dots, without a port, path or space";
                if (n > 63)
                        return "must be a host name, of whose labels none is longer than 63 characters";
                if (p[0] == '-' || p[n - 1] == '-')
                        return "must be a host name, of whose labels none begins or ends with \"-\"";
                p += n + (p[n] == '.');
        }
        return "must not be longer than a host name can be";
}

/* ---- IDNs ---- */

static bool is_ascii(const char *s) {
        for (; *s; s++)
                if (!isascii((unsigned char) *s))
                        return false;
        return true;
}

static bool has_a_label(const char *s) {
        for (; s; s = strchr(s, '.')) {
                s += *s == '.';
                if (strncasecmp(s, "xn--", 4) == 0)
                        return true;
        }
        return false;
}

static void idn2_freep(char **s) {
        idn2_free(*s);
}

/* To Unicode and back: what is an A-label already must come out as it went in, which an invalid one does not. Without libidn2's STD3
 * flag, which drops the characters that it is about; they stay visible in an A-label, and egress_normalise_name() refuses them. One final
 * dot may end a name, and `final_dot` says that text had it. */
static bool idn_to_ascii(const char *text, bool final_dot, char ret[static 254]) {
        _cleanup_(idn2_freep) char *unicode = NULL, *ascii = NULL;

        if (idn2_to_unicode_8z8z(text, &unicode, IDN2_NONTRANSITIONAL) != IDN2_OK ||
            idn2_to_ascii_8z(unicode, &ascii, IDN2_NONTRANSITIONAL) != IDN2_OK)
                return false;
        if (final_dot && *ascii && ascii[strlen(ascii) - 1] == '.') /* of an ideographic one */
                return false;
        if (egress_normalise_name(ascii, ret) < 0)
                return false;

        return !is_ascii(text) || strcasecmp(text, ascii) == 0;
}

const char *egress_written_name(const char *text, char ret[static 254]) {
        char copy[1024];
        size_t n = strlen(text);
        bool final_dot = n > 0 && text[n - 1] == '.';

        if (n >= sizeof(copy))
                return "must not be longer than a host name can be";
        if (is_ascii(text) && !has_a_label(text))
                return egress_normalise_name(text, ret) < 0 ? egress_name_fault(text) : NULL;
        if (strstr(text, ".."))
                return egress_name_fault(text);

        memcpy(copy, text, n + 1);
        if (final_dot)
                copy[n - 1] = '\0';
        return idn_to_ascii(copy, final_dot, ret) ? NULL : "must be a host name that IDNA 2008 allows (UTS #46, non-transitional)";
}

/* ---- who owns what is below ---- */

bool egress_is_public_suffix(const char *name) {
        return !strchr(name, '.') || psl_is_public_suffix(psl_builtin(), name);
}

/* Front ends that choose the site by what they read inside TLS, and serve more than one owner's. */
static const struct {
        const char *suffix, *service;
} shared[] = {
        { "akamaiedge.net",           "Akamai" },
        { "akamaihd.net",             "Akamai" },
        { "akamaized.net",            "Akamai" },
        { "edgekey.net",              "Akamai" },
        { "edgesuite.net",            "Akamai" },
        { "amazonaws.com",            "Amazon Web Services" },
        { "awsapprunner.com",         "Amazon Web Services" },
        { "cloudfront.net",           "Amazon CloudFront" },
        { "azureedge.net",            "Azure CDN" },
        { "azurefd.net",              "Azure Front Door" },
        { "azurewebsites.net",        "Azure App Service" },
        { "trafficmanager.net",       "Azure Traffic Manager" },
        { "windows.net",              "Azure" },
        { "b-cdn.net",                "bunny.net" },
        { "bunnycdn.com",             "bunny.net" },
        { "cdn77.org",                "CDN77" },
        { "cloudflare.com",           "Cloudflare" },
        { "cloudflare.net",           "Cloudflare" },
        { "cloudflareaccess.com",     "Cloudflare" },
        { "cloudflarestorage.com",    "Cloudflare" },
        { "workers.dev",              "Cloudflare" },
        { "pages.dev",                "Cloudflare" },
        { "r2.dev",                   "Cloudflare" },
        { "digitaloceanspaces.com",   "DigitalOcean" },
        { "ondigitalocean.app",       "DigitalOcean" },
        { "edgecastcdn.net",          "Edgio" },
        { "fastly.net",               "Fastly" },
        { "fastlylb.net",             "Fastly" },
        { "fly.dev",                  "Fly.io" },
        { "github.io",                "GitHub Pages" },
        { "githubusercontent.com",    "GitHub, by Fastly" },
        { "gitlab.io",                "GitLab Pages" },
        { "appspot.com",              "Google Cloud" },
        { "cloudfunctions.net",       "Google Cloud" },
        { "firebaseapp.com",          "Google Cloud" },
        { "googleapis.com",           "Google Cloud" },
        { "googleusercontent.com",    "Google Cloud" },
        { "run.app",                  "Google Cloud" },
        { "web.app",                  "Google Cloud" },
        { "herokuapp.com",            "Heroku" },
        { "jsdelivr.net",             "jsDelivr" },
        { "llnwd.net",                "Edgio" },
        { "netlify.app",              "Netlify" },
        { "pythonhosted.org",         "PyPI, by Fastly" },
        { "pypi.org",                 "PyPI, by Fastly" },
        { "onrender.com",             "Render" },
        { "stackpathcdn.com",         "StackPath" },
        { "unpkg.com",                "Cloudflare" },
        { "vercel.app",               "Vercel" },
};

static bool is_at_or_below(const char *name, const char *suffix) {
        size_t n = strlen(name), m = strlen(suffix);

        return n >= m && strcmp(name + n - m, suffix) == 0 && (n == m || name[n - m - 1] == '.');
}

const char *egress_shared_host(const char *name) {
        for (size_t i = 0; i < ELEMENTSOF(shared); i++)
                if (is_at_or_below(name, shared[i].suffix))
                        return shared[i].service;

        /* the private part of the list of public suffixes is one of services that give names to their customers */
        for (const char *p = strchr(name, '.'); p; p = strchr(p + 1, '.'))
                if (psl_is_public_suffix2(psl_builtin(), p + 1, PSL_TYPE_PRIVATE | PSL_TYPE_NO_STAR_RULE) &&
                    !psl_is_public_suffix2(psl_builtin(), p + 1, PSL_TYPE_ICANN | PSL_TYPE_NO_STAR_RULE))
                        return p + 1;
        return NULL;
}
