package command

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
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
