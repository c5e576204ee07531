package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

var logFormats = []string{"text", "json"}

// logFormatKey is the key of the ConfigMap fairway-agent, and the variable that deploy/ makes of it
// for the commands without --settings-dir.
const logFormatKey = "LOG_FORMAT"

// A logFormat is the value of --log-format of a command that is no agent.
type logFormat struct{ value string }

// newLogFormat adds the flag; without it the environment counts.
func newLogFormat(c *cobra.Command) *logFormat {
	f := &logFormat{}
	c.Flags().StringVar(&f.value, "log-format", "", "Log `format`: text or json (default $"+logFormatKey+", or text)")
	complete(c, "log-format", logFormats...)
	return f
}

// logger writes the log of a part of Fairway.
func (f *logFormat) logger(w io.Writer, component string) (*slog.Logger, error) {
	value, from := f.value, "--log-format"
	if value == "" {
		value, from = os.Getenv(logFormatKey), "$"+logFormatKey
	}
	switch value {
	case "", "text":
		return newLog(w, slog.LevelInfo), nil
	case "json":
		return newJSONLog(w, slog.LevelInfo, component), nil
	}
	return nil, fmt.Errorf("%s: %q is not a format [choose %s]", from, value, strings.Join(logFormats, " or "))
}
