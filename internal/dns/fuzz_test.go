package dns

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// FuzzLog: whatever CoreDNS logs, with names that any pod asks for, is passed on as one record, or none.
func FuzzLog(f *testing.F) {
	f.Add("[ERROR] plugin/errors: 2 example.org. A: read udp 10.0.0.1:53: i/o timeout\n")
	f.Add("[ERROR] plugin/errors: 2 1.2.3. HINFO: dial: connection refused")
	f.Add("[PANIC] plugin/: :")
	f.Fuzz(func(t *testing.T, line string) {
		_, plugin, text := parseLine(line)
		if !strings.Contains(line, plugin) || !strings.Contains(line, text) {
			t.Errorf("%q is taken apart into %q and %q", line, plugin, text)
		}
		if question, reason, ok := parseFailure(text); ok && (!strings.Contains(text, question) || !strings.Contains(text, reason)) {
			t.Errorf("%q is the failure of %q by %q", text, question, reason)
		}
		var out testnet.Log
		to := slog.New(slog.NewTextHandler(&out, nil))
		failed := newFailures(to, time.Hour)
		defer failed.close()
		if n, err := (lines{to, failed}).Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("%q: %d bytes were written, error %v", line, n, err)
		}
		if n := strings.Count(out.String(), "\n"); n > 1 {
			t.Errorf("%q is %d lines: %q", line, n, out.String())
		}
	})
}
