package cluster

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// An archivedImage is what manifest.json, in an archive, says of an image.
type archivedImage struct{ RepoTags, Layers []string }

// manifestOf reads what images an archive has; errNoFile: it does not say so.
func manifestOf(archive io.Reader) (images []archivedImage, err error) {
	err = eachFile(archive, func(h *tar.Header, in io.Reader) (bool, error) {
		if h.Name != "manifest.json" {
			return false, nil
		}
		if err := json.NewDecoder(in).Decode(&images); err != nil {
			return true, fmt.Errorf("read manifest.json: %w", err)
		}
		return true, nil
	})
	return images, err
}

// fileOfImage writes a program that an image's archive holds, by its path in the image, to a path on this machine.
func fileOfImage(archive, name, path string) error {
	file, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer file.Close()
	images, err := manifestOf(file)
	if err != nil {
		return err
	}
	var layers []string
	for _, i := range images {
		layers = append(layers, i.Layers...)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read again: %w", err)
	}
	return eachFile(file, func(h *tar.Header, layer io.Reader) (bool, error) {
		if !slices.Contains(layers, h.Name) {
			return false, nil
		}
		err := eachFile(layer, func(h *tar.Header, in io.Reader) (bool, error) {
			if strings.TrimPrefix(h.Name, "./") != name || h.Typeflag != tar.TypeReg {
				return false, nil
			}
			return true, replaceFile(path, in, 0o755)
		})
		return !errors.Is(err, errNoFile), err
	})
}

// errNoFile says that an archive does not have a file.
var errNoFile = errors.New("it has no such file")

// eachFile calls fn for the files of a tar until it is done, or fails for another reason than errNoFile.
func eachFile(in io.Reader, fn func(*tar.Header, io.Reader) (done bool, err error)) error {
	for all := tar.NewReader(in); ; {
		header, err := all.Next()
		if errors.Is(err, io.EOF) {
			return errNoFile
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if done, err := fn(header, all); done || err != nil && !errors.Is(err, errNoFile) {
			return err
		}
	}
}

// replaceFile writes a file in one step, also a program that runs: whoever opens it finds all of what was there, or all of
// what is in now, also if the lab is killed.
func replaceFile(path string, in io.Reader, mode os.FileMode) error {
	out, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}
