package dns

import (
	"context"
	"log"
	"log/slog"
	"regexp"
	"strings"
)

// captureLog sends the lines of the process's standard logger, which CoreDNS and Caddy use, to another logger until the
// caller calls restore.
func captureLog(to *slog.Logger) (restore func()) {
	w, flags, prefix := log.Writer(), log.Flags(), log.Prefix()
	failed := newFailures(to, failurePeriod)
	log.SetOutput(lines{to, failed})
	log.SetFlags(0)
	log.SetPrefix("")
	return func() {
		log.SetOutput(w)
		log.SetFlags(flags)
		log.SetPrefix(prefix)
		failed.close()
	}
}

// lines turns "[LEVEL] plugin/NAME: text" into a record with level and plugin.
type lines struct {
	to     *slog.Logger
	failed *failures
}

// Write logs one record; the standard logger calls it once a line.
func (l lines) Write(p []byte) (int, error) {
	level, plugin, text := parseLine(string(p))
	switch {
	case plugin == "errors" && level == slog.LevelError:
		question, reason, ok := parseFailure(text)
		if ok && probe.MatchString(question) {
			level = slog.LevelDebug // no client asked
		} else if ok && !l.failed.first(reason, text) {
			return len(p), nil
		}
	case strings.HasPrefix(text, "Restart failed: "):
		level = slog.LevelDebug // plugin reload repeats it in its next line
	case strings.HasPrefix(text, "No files matching import glob pattern"):
		level = slog.LevelDebug // k3s's Corefile has two such patterns, and each look at the file repeats the lines
	}
	var attrs []slog.Attr
	if plugin != "" {
		attrs = append(attrs, slog.String("plugin", plugin))
	}
	l.to.LogAttrs(context.Background(), level, text, attrs...)
	return len(p), nil
}

// parseLine splits a line of CoreDNS into its parts. A line of another form becomes the text.
func parseLine(line string) (level slog.Level, plugin, text string) {
	text = strings.TrimSpace(line)
	for tag, l := range map[string]slog.Level{
		"[DEBUG] ": slog.LevelDebug, "[INFO] ": slog.LevelInfo, "[WARNING] ": slog.LevelWarn,
		"[ERROR] ": slog.LevelError, "[FATAL] ": slog.LevelError, "[PANIC] ": slog.LevelError,
	} {
		if rest, ok := strings.CutPrefix(text, tag); ok {
			level, text = l, rest
			break
		}
	}
	if rest, ok := strings.CutPrefix(text, "plugin/"); ok {
		if name, rest, ok := strings.Cut(rest, ": "); ok {
			return level, name, rest
		}
	}
	return level, "", text
}

// failure matches a failed question, as plugin errors writes it: "2 example.org. A: read udp …: i/o timeout".
var failure = regexp.MustCompile(`^\d+ (\S*\. [A-Z0-9]+): (.+)$`)

// probe matches the question of plugin loop, which asks at each start whether an upstream leads back to this server. The
// question fails if upstreams refuse or are silent, which is no news.
var probe = regexp.MustCompile(`^\d+\.\d+\.\S* HINFO$`)

// parseFailure splits the line of a failed question. The reason is the text after the last colon: the text before that
// colon has addresses and ports, which differ in every line.
func parseFailure(text string) (question, reason string, ok bool) {
	m := failure.FindStringSubmatch(text)
	if m == nil {
		return "", "", false
	}
	return m[1], strings.TrimSpace(m[2][strings.LastIndex(m[2], ":")+1:]), true
}
