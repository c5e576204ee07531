package command

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// A failing operation is retried, perhaps several times a second. Its line is logged once in repeatAfter. At most
// maxRepeats different lines are remembered.
const (
	repeatAfter = time.Minute
	maxRepeats  = 500
)

// repeats is a log handler that drops a repeated failure and counts it in the next line: repeated=N. A failure is a
// warning or an error with the attribute err. A line of level info, which may report recovery, resets it.
type repeats struct {
	slog.Handler
	with string // attributes that this handler adds
	seen *seen
}

type seen struct {
	mu    sync.Mutex
	lines map[string]*line
}

type line struct {
	logged  time.Time
	skipped int // lines dropped since then
}

func onceAMinute(h slog.Handler) slog.Handler {
	return repeats{Handler: h, seen: &seen{lines: map[string]*line{}}}
}

func (h repeats) WithAttrs(attrs []slog.Attr) slog.Handler {
	return repeats{h.Handler.WithAttrs(attrs), h.with + fmt.Sprint(attrs), h.seen}
}

func (h repeats) WithGroup(name string) slog.Handler {
	return repeats{h.Handler.WithGroup(name), h.with + name + ".", h.seen}
}

func (h repeats) Handle(ctx context.Context, r slog.Record) error {
	key, failure := h.key(r)
	if r.Level == slog.LevelInfo {
		h.seen.forget()
	}
	if failure {
		more, due := h.seen.due(key, r.Time)
		if !due {
			return nil
		}
		if more > 0 {
			r = r.Clone()
			r.AddAttrs(slog.Int("repeated", more))
		}
	}
	return h.Handler.Handle(ctx, r)
}

// key returns the parts of a line that identify a failure. It leaves out counters and times of retries.
func (h repeats) key(r slog.Record) (key string, failure bool) {
	key = h.with + r.Message
	r.Attrs(func(a slog.Attr) bool {
		failure = failure || a.Key == "err"
		if a.Key != "tries" && a.Key != "again" {
			key += "\x00" + a.String()
		}
		return true
	})
	return key, failure && r.Level >= slog.LevelWarn
}

// forget lets the next line of each failure pass.
func (s *seen) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.lines)
}

// due reports whether to log a line now, and how many equal lines were dropped before it.
func (s *seen) due(key string, now time.Time) (more int, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lines[key]; l != nil && now.Sub(l.logged) < repeatAfter {
		l.skipped++
		return 0, false
	} else if l != nil {
		more = l.skipped
	}
	if len(s.lines) >= maxRepeats {
		clear(s.lines)
	}
	s.lines[key] = &line{logged: now}
	return more, true
}
