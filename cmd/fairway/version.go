package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/output"
)

// version is set by the Makefile with -ldflags -X; a plain `go build` says so.
var version = "v0.1.0-dev"

// userAgent names this program to the API server. It is made at the start, after -X.
var userAgent = "fairway/" + version

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

func newVersion(e env) *cobra.Command {
	format := output.Table
	c := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program",
		Example: "  fairway version -o json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return output.Write(e.stdout, format, versionInfo{version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH})
		},
	}
	c.Flags().VarP(&format, "output", "o", "table, wide, json or yaml")
	complete(c, "output", output.Formats()...)
	return c
}
