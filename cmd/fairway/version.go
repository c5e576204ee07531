package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/cli/output"
	"github.com/fairway-net/fairway/internal/command"
)

// versionInfo is the output of fairway version.
type versionInfo struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// WriteTable implements output.Value.
func (v versionInfo) WriteTable(w io.Writer, _ bool) error {
	_, err := io.WriteString(w, v.String())
	return err
}

func (v versionInfo) String() string {
	return fmt.Sprintf("fairway %s %s %s\n", v.Version, v.Go, v.Platform)
}

func newVersionInfo(e command.Env) versionInfo {
	return versionInfo{e.Version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
}

func newVersion(e command.Env) *cobra.Command {
	format := output.Table
	c := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program",
		Example: "  fairway version -o json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return output.Write(e.Stdout, format, newVersionInfo(e))
		},
	}
	c.Flags().VarP(&format, "output", "o", "table, wide, json or yaml")
	command.Complete(c, "output", output.Formats()...)
	return c
}
