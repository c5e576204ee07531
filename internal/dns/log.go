package dns

import (
	"context"
	"log"
	"log/slog"
	"strings"
)

// captureLog sends the lines of CoreDNS and Caddy, which write to the standard
// logger of the process, to ours, and returns a function that ends that.
func captureLog(to *slog.Logger) (restore func()) {
	w, flags, prefix := log.Writer(), log.Flags(), log.Prefix()
	log.SetOutput(lines{to})
	log.SetFlags(0)
	log.SetPrefix("")
	return func() {
		log.SetOutput(w)
		log.SetFlags(flags)
		log.SetPrefix(prefix)
	}
}

// lines turns "[LEVEL] plugin/NAME: text" into a record with level and plugin.
type lines struct{ to *slog.Logger }

// Write logs one record; the standard logger calls it once a line.
func (l lines) Write(p []byte) (int, error) {
	level, plugin, text := parseLine(string(p))
	var attrs []slog.Attr
	if plugin != "" {
		attrs = append(attrs, slog.String("plugin", plugin))
	}
	l.to.LogAttrs(context.Background(), level, text, attrs...)
	return len(p), nil
}

// parseLine takes a line of CoreDNS apart. What is not in its form is kept whole.
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
