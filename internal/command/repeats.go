package command

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// What fails is tried again, some of it several times a second and for as long as it fails. Its lines are logged
// once in repeatAfter; more different ones than maxRepeats are not remembered.
const (
	repeatAfter = time.Minute
	maxRepeats  = 500
)

// repeats leaves out a line about a failure that is the same as one shortly before, and counts it in the next:
// repeated=N. A failure is a warning or an error with the attribute err. What was said before a line of level info, as
// that it works again, is said again after it.
type repeats struct {
	slog.Handler
	with string // the attributes that this handler adds
	seen *seen
}

type seen struct {
	mu    sync.Mutex
	lines map[string]*line
}

type line struct {
	logged  time.Time
	skipped int // left out since
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

// key is what two lines have in common that say the same: not how often it was tried, and when it is again.
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

// forget has the next line of each failure logged.
func (s *seen) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.lines)
}

// due reports whether a line is logged now, and how many of it were left out before.
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
