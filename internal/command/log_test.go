package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// TestJSONLog: one object per line, with the component, and errors as text.
func TestJSONLog(t *testing.T) {
	var out strings.Builder
	NewJSONLog(&out, slog.LevelInfo, "agent").Warn("no", "err", errors.New("a\nb"))
	var line map[string]string
	if err := json.Unmarshal([]byte(out.String()), &line); err != nil || line["component"] != "agent" || line["err"] != "a; b" || line["level"] != "WARN" {
		t.Errorf("%s: %v", &out, err)
	}
}

// TestLogValues: text and JSON have the same words for a duration, an address and whatever has a text of its own.
func TestLogValues(t *testing.T) {
	attrs := []any{"again", 1500*time.Millisecond + 12345, "service", api.Name{Namespace: "prod", Name: "web"}, "address", netip.MustParseAddr("10.0.0.1")}
	var text, json strings.Builder
	NewLog(&text, slog.LevelInfo).Info("so", attrs...)
	if want := "msg=so again=1.5s service=prod/web address=10.0.0.1\n"; !strings.HasSuffix(text.String(), want) {
		t.Errorf("text has %s, want %s", &text, want)
	}
	NewJSONLog(&json, slog.LevelInfo, "agent").Info("so", attrs...)
	if want := `"msg":"so","component":"agent","again":"1.5s","service":"prod/web","address":"10.0.0.1"}`; !strings.Contains(json.String(), want) || !strings.Contains(json.String(), `{"time":"2`) {
		t.Errorf("JSON has %s, want %s", &json, want)
	}
}

// TestRepeats: a failure that lasts is logged once a minute, with how often it happened; what is no failure, or another
// one, is logged each time.
func TestRepeats(t *testing.T) {
	var out strings.Builder
	h := onceAMinute(slog.NewTextHandler(&out, logOptions(slog.LevelDebug)))
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	say := func(at time.Duration, level slog.Level, message string, attrs ...slog.Attr) {
		r := slog.NewRecord(start.Add(at), level, message, 0)
		r.AddAttrs(attrs...)
		if err := h.Handle(t.Context(), r); err != nil {
			t.Error(err)
		}
	}
	failed := func(at time.Duration, text string) {
		say(at, slog.LevelError, "fails", slog.Any("err", errors.New(text)), slog.Duration("again", at))
	}
	for at := time.Duration(0); at < 90*time.Second; at += time.Second {
		failed(at, "full")
		say(at, slog.LevelDebug, "goes on", slog.Any("err", errors.New("none")))
	}
	failed(0, "locked")
	say(0, slog.LevelWarn, "session is down", slog.String("reason", "so"))
	say(0, slog.LevelWarn, "session is down", slog.String("reason", "so"))
	failed(0, "over")
	say(0, slog.LevelInfo, "works again")
	failed(0, "over")
	peer := slog.New(h).With("peer", "a")
	peer.Warn("fails", "err", errors.New("full"))
	for want, n := range map[string]int{
		"msg=fails err=full again=0s\n": 1, "msg=fails err=full again=1m0s repeated=59\n": 1, "msg=\"goes on\"": 90,
		"err=locked": 1, "err=over": 2, "msg=\"session is down\"": 2, "msg=fails peer=a err=full": 1, "msg=fails": 6,
	} {
		if got := strings.Count(out.String(), want); got != n {
			t.Errorf("%q is there %d times, want %d:\n%s", want, got, n, &out)
		}
	}
}

// TestRepeatsBound: what is remembered is bounded.
func TestRepeatsBound(t *testing.T) {
	s := &seen{lines: map[string]*line{}}
	for i := range 10 * maxRepeats {
		s.due(fmt.Sprint(i), time.Time{})
	}
	if len(s.lines) > maxRepeats {
		t.Errorf("%d lines are remembered", len(s.lines))
	}
}

// TestLogFormat: the flag, or what deploy/ has in the environment.
func TestLogFormat(t *testing.T) {
	for _, c := range []struct{ flag, env, want string }{
		{"", "", "level=WARN msg=no"},
		{"text", "json", "level=WARN msg=no"},
		{"", "json", `"level":"WARN","msg":"no","component":"dns"`},
		{"json", "", `"msg":"no","component":"dns"`},
		{"", "xml", `error $LOG_FORMAT: "xml" is not a format [choose text or json]`},
		{"logfmt", "", `error --log-format: "logfmt" is not a format [choose text or json]`},
	} {
		t.Setenv(LogFormatKey, c.env)
		var out strings.Builder
		log, err := (&LogFormat{c.flag}).Logger(&out, "dns")
		if err != nil {
			out.WriteString("error " + err.Error())
		} else {
			log.Warn("no")
		}
		if !strings.Contains(out.String(), c.want) {
			t.Errorf("%+v: %s", c, &out)
		}
	}
}
