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

// An archivedImage is the entry of one image in an archive's manifest.json.
type archivedImage struct{ RepoTags, Layers []string }

// manifestOf reads the list of an archive's images. The error is errNoFile if the archive has no manifest.json.
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

// fileOfImage copies a file out of an image's archive. name is its path in the image, path the target on this machine.
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

// errNoFile says that an archive does not contain the wanted file.
var errNoFile = errors.New("it has no such file")

// eachFile calls fn for each file of a tar archive. It stops when fn is done or returns an error other than errNoFile.
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

// replaceFile writes a file in one step, so path may be a program that is running. A reader finds either the whole old
// content or the whole new content, even if the lab is killed.
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
