package chart

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"maps"
	"slices"
)

// Archive packs the files as `helm package` does. The same files give the same bytes.
func Archive(files map[string][]byte) ([]byte, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		header := &tar.Header{Name: "fairway/" + name, Mode: 0o644, Size: int64(len(files[name])), Format: tar.FormatPAX}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("pack %s: %w", name, err)
		}
		if _, err := w.Write(files[name]); err != nil {
			return nil, fmt.Errorf("pack %s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("pack the chart: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("pack the chart: %w", err)
	}
	return out.Bytes(), nil
}
