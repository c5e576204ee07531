package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/output"
)

// versionInfo is what fairway version prints.
type versionInfo struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// WriteTable implements output.Value.
func (v versionInfo) WriteTable(w io.Writer, _ bool) error {
	_, err := fmt.Fprintf(w, "fairway %s %s %s\n", v.Version, v.Go, v.Platform)
	return err
}

func newVersion(e command.Env) *cobra.Command {
	format := output.Table
	c := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program",
		Example: "  fairway version -o json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return output.Write(e.Stdout, format, versionInfo{e.Version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH})
		},
	}
	c.Flags().VarP(&format, "output", "o", "table, wide, json or yaml")
	command.Complete(c, "output", output.Formats()...)
	return c
}
