package proxy

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestRetry: a pass that keeps failing is repeated every few seconds, or less often if a pass takes long. The log has
// one line a minute.
func TestRetry(t *testing.T) {
	for _, test := range []struct {
		name           string
		takes, longest time.Duration
		atLeast, most  time.Duration // the pauses, after a while
		tries          [2]int        // number in ten minutes
	}{
		{"a quick pass", 0, 30 * time.Second, maxPause, 4 * time.Second, [2]int{150, 210}},
		{"a pass that takes seconds", 5 * time.Second, 30 * time.Second, 20 * time.Second, 20 * time.Second, [2]int{24, 26}},
		{"a pass that takes a minute", time.Minute, 30 * time.Second, 30 * time.Second, 30 * time.Second, [2]int{6, 8}},
		{"a short period", 0, time.Second, time.Second, time.Second, [2]int{590, 610}},
	} {
		var log bytes.Buffer
		var r retry
		now, tries := time.Unix(1, 0), 0
		for end := now.Add(10 * time.Minute); now.Before(end); tries++ {
			start := now
			now = now.Add(test.takes)
			pause := r.failed(slog.New(slog.NewTextHandler(&log, nil)), errors.New("no space left"), start, now, test.longest)
			if !r.waits(now) || r.waits(now.Add(pause)) {
				t.Errorf("%s: a pause of %v does not end when it is over", test.name, pause)
			}
			if tries > 6 && (pause < test.atLeast || pause > test.most) {
				t.Errorf("%s: pause %d is %v", test.name, tries, pause)
			}
			now = now.Add(pause)
		}
		if tries < test.tries[0] || tries > test.tries[1] {
			t.Errorf("%s: %d tries in ten minutes", test.name, tries)
		}
		if lines := strings.Count(log.String(), "\n"); lines < 6 || lines > 11 {
			t.Errorf("%s: %d log lines in ten minutes:\n%s", test.name, lines, &log)
		}
	}
}

// TestRetryLogs: a new error is logged soon, and so is the end of all errors.
func TestRetryLogs(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	var r retry
	now := time.Unix(1, 0)
	for i := range 100 {
		r.failed(logger, errors.New([]string{"this", "that"}[i%2]), now, now, time.Minute)
		now = now.Add(time.Second)
	}
	if lines := strings.Count(log.String(), "\n"); lines < 2 || lines > 10 {
		t.Errorf("%d log lines of two errors in turns:\n%s", lines, &log)
	}
	log.Reset()
	r.succeeded(logger)
	r.succeeded(logger)
	if strings.Count(log.String(), "failures=100") != 1 || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("after the end: %s", &log)
	}
	if r.waits(now) {
		t.Error("a loop whose pass succeeded waits")
	}
}

// TestChangesWaitForRetry: while passes fail, changes cause no additional passes.
func TestChangesWaitForRetry(t *testing.T) {
	h := start(t, func() error { return errors.New("injected") })
	close(h.api.synced)
	began, passes := time.Now(), 0
	for i := 0; passes < 5; i++ {
		h.api.set(i % 100)
		select {
		case <-h.syncs:
			passes++
		case <-time.After(time.Millisecond):
		}
	}
	if least := 4 * firstPause; time.Since(began) < least {
		t.Errorf("%d passes failed within %v, want %v from one to the next", passes, time.Since(began), firstPause)
	}
}
