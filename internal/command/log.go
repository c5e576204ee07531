package command

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/text"
)

var logFormats = []string{"text", "json"}

// LogFormatKey is a key of the ConfigMap fairway-agent. deploy/ makes an environment variable of it for commands
// without --settings-dir.
const LogFormatKey = "LOG_FORMAT"

// A LogFormat is the value of --log-format, for commands other than the agent.
type LogFormat struct{ value string }

// NewLogFormat adds the flag. Its default is the environment variable.
func NewLogFormat(c *cobra.Command) *LogFormat {
	f := &LogFormat{}
	c.Flags().StringVar(&f.value, "log-format", "", "Log `format`: text or json (default $"+LogFormatKey+", or text)")
	Complete(c, "log-format", logFormats...)
	return f
}

// Logger returns the log of a part of Fairway.
func (f *LogFormat) Logger(w io.Writer, component string) (*slog.Logger, error) {
	value, from := f.value, "--log-format"
	if value == "" {
		value, from = os.Getenv(LogFormatKey), "$"+LogFormatKey
	}
	switch value {
	case "", "text":
		return NewLog(w, slog.LevelInfo), nil
	case "json":
		return NewJSONLog(w, slog.LevelInfo, component), nil
	}
	return nil, fmt.Errorf("%s: %q is not a format [choose %s]", from, value, strings.Join(logFormats, " or "))
}

// NewLog returns a logger that puts an error of several lines into one line, and logs a repeated failure once a minute.
func NewLog(w io.Writer, level slog.Leveler) *slog.Logger {
	return slog.New(onceAMinute(slog.NewTextHandler(w, logOptions(level))))
}

// NewJSONLog returns a logger that names the part of Fairway in each line, because the lines of all parts are collected
// in one place.
func NewJSONLog(w io.Writer, level slog.Leveler, component string) *slog.Logger {
	return slog.New(onceAMinute(slog.NewJSONHandler(w, logOptions(level)))).With("component", component)
}

func logOptions(level slog.Leveler) *slog.HandlerOptions {
	return &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		switch v := a.Value.Any().(type) {
		case error:
			a.Value = slog.StringValue(text.OneLine(v).Error())
		case time.Time: // added by the handler
		case time.Duration: // JSON would print nanoseconds
			if v > 10*time.Millisecond {
				v = v.Round(time.Millisecond)
			}
			a.Value = slog.StringValue(v.String())
		case fmt.Stringer: // JSON would print a Service as an object
			a.Value = slog.StringValue(v.String())
		}
		return a
	}}
}
